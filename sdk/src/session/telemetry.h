// Telemetry shows the run of a job while it lasts, on rank 0. Owns the state that the coordinator
// records into, the HTTP server and the metrics that read the state, the findings, and the tally of
// the run. On other ranks, and before start(), there is nothing to show. ControlEnd owns telemetry.
// Training thread only, except for start()'s sink and show_stall(): they belong to the
// coordinator's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/core/job.h"
#include "coordinator/core/operator_table.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/status.h"
#include "coordinator/decide/record.h"
#include "coxswain/session.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/memory.h"
#include "metrics/topics/parallel.h"
#include "sdk/src/session/membership.h"

namespace prometheus {
class Collectable;
}

namespace cox::detail {

class Telemetry {
 public:
  explicit Telemetry(const Membership& job);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // Returns the sink of the coordinator's records, which lives as long as this; or the error of the
  // HTTP server, then nothing has started.
  Result<StepSink*> start(const JobFacts& facts);
  // Logs where the status page is, if it is served.
  void log_address() const;

  void keep(std::shared_ptr<const OperatorTable> operators);
  // Shows what a rank of this job holds beside activations; fields of 0 leave what is known.
  void show_held(const metrics::HeldBytes& held);
  void show(const metrics::SharedUpdates& updates);
  // Shows the step with which the job ends by itself.
  void show_last_step(std::uint64_t step);
  void show_stall(const std::optional<Stall>& stall);

  // Returns "http://127.0.0.1:9464/status" on rank 0, and an empty string elsewhere and when the
  // server is off.
  std::string status_address() const;
  std::shared_ptr<prometheus::Collectable> metrics() const;  // rank 0; elsewhere null
  SessionReport report() const;                              // of the run so far, on rank 0

  // Ends the run on the page.
  void finish();
  // Waits some seconds where the status page is open in a browser, so that the page shows the job's
  // last values and its end. Does nothing before finish().
  void wait_for_last_look();

 private:
  struct Parts;

  const Membership& job_;
  metrics::HeldBytes held_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cox::detail
