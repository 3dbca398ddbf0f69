// Stops a civetweb server without its two seconds of waiting: its listening thread sleeps in poll()
// for that long and is not woken by mg_stop(), but by a connection. Blocks until all threads ended.
#pragma once

#include <cstdint>
#include <string>

struct mg_context;

namespace cox::metrics {

// `host` and `port` as the server listens on them; `server` is gone afterwards.
void stop_promptly(mg_context* server, const std::string& host, std::uint16_t port);

}  // namespace cox::metrics
