// Telemetry: what rank 0 shows to the outside: the telemetry state that the coordinator records
// into, and the HTTP server that reads it. Started with the control plane; outlives the
// coordinator's thread.
#pragma once

#include <memory>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/record.h"
#include "coordinator/core/status.h"
#include "metrics/http_server.h"
#include "metrics/telemetry_state.h"

namespace cox::detail {

class Telemetry {
 public:
  // unavailable when the port is taken.
  static Result<std::unique_ptr<Telemetry>> start(const JobFacts& job, const Config& config,
                                                  UnixTime now);

  StepSink& sink() { return state_; }
  metrics::TelemetryState& state() { return state_; }
  // "http://127.0.0.1:9464/status"; empty when the server is off.
  std::string address() const;
  void finish() { state_.finish(); }

 private:
  Telemetry(const JobFacts& job, UnixTime now);

  metrics::TelemetryState state_;
  std::unique_ptr<metrics::HttpServer> server_;  // reads state_, so it goes first
};

}  // namespace cox::detail
