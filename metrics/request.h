// A request and a response as the routes see them: HTTP without sockets. Plain values; pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

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

// Returns the unsigned number of `name` in a query string; nullopt when it is absent,
// invalid_argument when it is no number.
Result<std::optional<std::uint64_t>> query_number(std::string_view query, std::string_view name);

}  // namespace cox::metrics
