#include "sdk/src/session/telemetry.h"

namespace cox::detail {

Telemetry::Telemetry(const JobFacts& job, UnixTime now) : state_(job, now, {COX_VERSION, ""}) {}

Result<std::unique_ptr<Telemetry>> Telemetry::start(const JobFacts& job, const Config& config,
                                                    UnixTime now) {
  std::unique_ptr<Telemetry> telemetry(new Telemetry(job, now));
  if (!config.http.enabled) return telemetry;
  auto server = metrics::HttpServer::start(config, telemetry->state_);
  if (!server.ok()) return server.status();
  telemetry->server_ = std::move(*server);
  return telemetry;
}

std::string Telemetry::address() const {
  return server_ ? server_->url() + "/status" : std::string();
}

}  // namespace cox::detail
