// The answers of the server, as pure functions: a request, a snapshot, the time and the settings
// give a response. Nothing here knows sockets, so all of it is tested without one. Everything is
// read-only.
#pragma once

#include <string>
#include <vector>

#include "metrics/request.h"

namespace cox::metrics {

// Returns the response: 404 with a hint for unknown paths, 405 for methods other than GET and HEAD,
// 400 for parameters that do not parse.
Response respond(const Request& request, const Served& served);

// Endpoint is one entry of the index page.
struct Endpoint {
  std::string path;
  std::string help;
};
// Returns every path that is answered: the pages, the documents of the topics and what monitoring
// asks.
const std::vector<Endpoint>& endpoints();

}  // namespace cox::metrics
