// HttpServer answers GET and HEAD on one address with respond(). The server is bound to this
// machine by default, and to a network only with a token or http.open. The training and coordinator
// threads never touch the server. http/service.h answers the requests.
//
// No client can starve the server. One thread waits for all connections, and answers liveness and
// readiness. Each request has a total deadline. The oldest idle or slow connection closes when a
// new one finds no room. A second thread renders pages, so that a large page delays no probe.
// Streams of events (routes.h) cost one rendering a second in total; the number of followers is
// limited, and a follower that reads too slowly is dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"

namespace cox::metrics {

// The action when http.port is taken.
enum class BusyPort { fail, take_another };

class HttpServer {
 public:
  // Returns everything that requests are answered from. Called on the server's threads.
  using Source = std::function<Served()>;

  // Binds and starts to answer. Errors: unavailable if the port is taken or the address is not of
  // this machine, and those of check_exposure().
  static Result<std::unique_ptr<HttpServer>> start(const HttpConfig& config, Source source,
                                                   BusyPort busy = BusyPort::fail);

  // Serves `state` by the wall clock. `state` must outlive the server.
  static Result<std::unique_ptr<HttpServer>> start(const Config& config,
                                                   const TelemetryState& state,
                                                   BusyPort busy = BusyPort::fail);

  // Waits at most two seconds for the answers in progress.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Waits until the status pages open in browsers have fetched the last values, at most a little
  // longer than their refresh period. Returns at once if no page is open. REQUIRES: the source
  // returns a finished job.
  void wait_for_last_look();

  std::uint16_t port() const { return port_; }  // the bound one
  std::string url() const;                      // "http://127.0.0.1:9464"

 private:
  class Threads;
  HttpServer() = default;

  std::unique_ptr<Threads> threads_;
  std::string host_;
  std::uint16_t port_ = 0;
};

}  // namespace cox::metrics
