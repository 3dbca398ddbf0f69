// The answers of the server, as pure functions: a request, a snapshot, the time and the settings
// give a response. Nothing here knows sockets, so all of it is tested without one. Everything is
// read-only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "metrics/http/event_feed.h"
#include "metrics/request.h"

namespace cox::metrics {

// 404 with a hint for unknown paths, 400 for parameters that do not parse. REQUIRES: judge() (see
// http/access.h) let the request through.
Response respond(const Request& request, const Served& served);

// Whether the path is liveness or readiness: answered at once on the server's own thread, and
// without the token, because those who probe have none.
bool is_probe(std::string_view path);

// Stream is an endpoint that goes on: server-sent events tell how its parts change.
struct Stream {
  Endpoint endpoint;
  std::vector<EventPart> (*parts)(const Served& served) = nullptr;
};
const std::vector<Stream>& streams();

// Whether the page at `path` fetches itself again while the job runs.
bool refreshes_itself(std::string_view path);

// Returns every path that is answered: the pages, the documents of the topics and what monitoring
// asks.
const std::vector<Endpoint>& endpoints();

}  // namespace cox::metrics
