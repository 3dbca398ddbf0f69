// What the server answers, as pure functions: a request, a snapshot, the time and the settings give
// a response. Nothing here knows sockets, so all of it is tested without one. Everything is
// read-only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/config.h"
#include "metrics/build_info.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

struct Request {
  std::string method = "GET";
  std::string path = "/";  // decoded, without the query
  std::string query;       // as sent, without '?'
};

struct Response {
  int status = 200;
  std::string content_type = "application/json; charset=utf-8";
  std::string body;
};

// A setting as it may be shown.
struct Setting {
  std::string key;
  std::string value;
  std::string unit;
  std::string help;
};

// Every option of the configuration. Paths and secrets are replaced by "(set)".
std::vector<Setting> settings_of(const Config& config);

// What a request is answered from.
struct Served {
  std::shared_ptr<const Snapshot> snapshot;  // never null
  UnixTime now{};
  BuildInfo build;
  std::vector<Setting> settings;
};

// 404 with a hint for unknown paths, 405 for methods other than GET and HEAD, 400 for parameters
// that do not parse.
Response respond(const Request& request, const Served& served);

// One endpoint, for the index page.
struct Endpoint {
  std::string path;
  std::string help;
};
const std::vector<Endpoint>& endpoints();

// The unsigned number of `name` in a query string; nullopt when absent, invalid_argument when it is
// no number.
Result<std::optional<std::uint64_t>> query_number(std::string_view query, std::string_view name);

}  // namespace cox::metrics
