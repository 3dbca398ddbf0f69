// HttpServer: answers GET and HEAD on one address with respond(). An own civetweb server without
// files, CGI or WebSockets: four threads, small requests only, time limits, so that slow or hostile
// clients cost nobody anything but themselves. Bound to this machine unless told otherwise. The
// training and coordinator threads never touch it.
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

class HttpServer {
 public:
  // Gives everything that a request is answered from. Called on the server's threads.
  using Source = std::function<Served()>;

  // Binds and starts to answer. `unavailable` when the port is taken, `invalid_argument` when the
  // host is no IPv4 address.
  static Result<std::unique_ptr<HttpServer>> start(const HttpConfig& config, Source source);

  // Serves `state` (which must outlive the server) with the wall clock as the time.
  static Result<std::unique_ptr<HttpServer>> start(const Config& config,
                                                   const TelemetryState& state);

  // Waits for the requests in progress, at most some seconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const { return port_; }  // the bound one
  std::string url() const;                      // "http://127.0.0.1:9464"

 private:
  struct Context;
  HttpServer() = default;

  std::unique_ptr<Context> context_;
  std::string host_;
  std::uint16_t port_ = 0;
};

}  // namespace cox::metrics
