// The routes' view of HTTP, without sockets: a request, the data for its answer, and a response.
// Plain values; pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

struct Request {
  std::string method = "GET";  // or HEAD
  std::string path = "/";      // decoded, without the query
  std::string query;           // as sent, without '?'
};

struct Response {
  int status = 200;
  std::string content_type = "application/json; charset=utf-8";
  std::string body;
};

// Returns a refusal with one sentence of explanation.
Response refusal(int status, std::string_view message);

// Returns the unsigned number of `name` in a query string; nullopt if `name` is absent,
// invalid_argument if its value is no number.
Result<std::optional<std::uint64_t>> query_number(std::string_view query, std::string_view name);

// Returns every option of the configuration for display. Paths and secrets are replaced by "(set)".
std::vector<ConfigOption> settings_of(const Config& config);

// Endpoint is a path of the server, for the index page.
struct Endpoint {
  std::string path;
  std::string help;
};
// Served has all data for the pages of one moment.
struct Served {
  std::shared_ptr<const Snapshot> snapshot;  // never null
  UnixTime now{};
  std::vector<ConfigOption> settings;
};

}  // namespace cox::metrics
