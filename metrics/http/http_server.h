// HttpServer: answers GET and HEAD on one address with respond(). Nobody can starve it: one thread
// waits for all connections at once, gives each request a deadline as a whole, and closes the
// oldest connection that is idle or slow when a new one finds no room. That thread also answers
// liveness and readiness; pages are rendered on a second one, so that a large page delays no probe.
// Streams of events (routes.h) cost that second thread one rendering a second, however many follow
// them; their number is bounded, and a follower who does not take a piece in time is dropped.
// Bound to this machine unless told otherwise, and beyond it only with a token or http.open. The
// training and coordinator threads never touch it. What comes in is answered in http/service.h.
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

// What to do when http.port is taken.
enum class BusyPort { fail, take_another };

class HttpServer {
 public:
  // Gives everything that a request is answered from. Called on the server's threads.
  using Source = std::function<Served()>;

  // Binds and starts to answer. `unavailable` when the port is taken or the address is not this
  // machine's, `invalid_argument` as check_exposure() says.
  static Result<std::unique_ptr<HttpServer>> start(const HttpConfig& config, Source source,
                                                   BusyPort busy = BusyPort::fail);

  // Serves `state` (which must outlive the server) with the wall clock as the time.
  static Result<std::unique_ptr<HttpServer>> start(const Config& config,
                                                   const TelemetryState& state,
                                                   BusyPort busy = BusyPort::fail);

  // Waits for the answers in progress, at most two seconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Waits until the status pages that are open in browsers have come back for the last values, at
  // most a little longer than they take to refresh. Returns at once where none is open. REQUIRES:
  // the source gives a job that has finished.
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
