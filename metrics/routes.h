// The answers of the server as pure functions: a request, a snapshot, the time and the settings
// give a response. No function uses a socket, so tests need none. All routes are read-only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "metrics/http/event_feed.h"
#include "metrics/request.h"

namespace cox::metrics {

// Returns the answer to a request: 404 with a hint for an unknown path, 400 for parameters that do
// not parse. REQUIRES: judge() (http/access.h) has accepted the request.
Response respond(const Request& request, const Served& served);

// Returns whether the path is liveness or readiness. Such a request is answered at once on the
// server's own thread, and without the token, which monitoring does not have.
bool is_probe(std::string_view path);

// Stream is an endpoint that stays open and sends the changes of its parts as server-sent events.
struct Stream {
  Endpoint endpoint;
  std::vector<EventPart> (*parts)(const Served& served) = nullptr;
};
const std::vector<Stream>& streams();

// Returns whether the page at `path` fetches itself again while the job runs.
bool refreshes_itself(std::string_view path);

// Returns every path that is answered: pages, documents of topics, and probes of monitoring.
const std::vector<Endpoint>& endpoints();

}  // namespace cox::metrics
