// A request, what it is answered from, and a response, as the routes see them: HTTP without
// sockets. Plain values; pure.
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

// Returns the answer to a request that is not served, with one sentence of why.
Response refusal(int status, std::string_view message);

// Returns the unsigned number of `name` in a query string; nullopt when it is absent,
// invalid_argument when it is no number.
Result<std::optional<std::uint64_t>> query_number(std::string_view query, std::string_view name);

// Returns every option of the configuration as it may be shown: values that are paths or secrets
// are replaced by "(set)".
std::vector<ConfigOption> settings_of(const Config& config);

// One endpoint, for the index page.
struct Endpoint {
  std::string path;
  std::string help;
};
// Served is everything that the pages of one moment are made from.
struct Served {
  std::shared_ptr<const Snapshot> snapshot;  // never null
  UnixTime now{};
  std::vector<ConfigOption> settings;
};

}  // namespace cox::metrics
