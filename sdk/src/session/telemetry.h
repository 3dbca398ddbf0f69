// Telemetry shows the run of a job while it lasts, on rank 0. Owns the state that the coordinator
// writes, the HTTP server, the metrics, the findings, and the tally of the run. Has nothing to show
// on other ranks, and before start(). Owned by ControlEnd. Training thread only, except start()'s
// sink and show_stall(), which belong to the coordinator's thread.
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

  // Returns the sink of the coordinator's records, which lives as long as this object. If the HTTP
  // server fails, returns its error and starts nothing.
  Result<StepSink*> start(const JobFacts& facts);
  // Logs the address of the status page, if the page is served.
  void log_address() const;

  void keep(std::shared_ptr<const OperatorTable> operators);
  // Shows the bytes that a rank of this job holds beside activations. Fields of 0 keep the known
  // values.
  void show_held(const metrics::HeldBytes& held);
  void show(const metrics::SharedUpdates& updates);
  // Shows the number of the job's last step.
  void show_last_step(std::uint64_t step);
  void show_stall(const std::optional<Stall>& stall);

  // Returns "http://127.0.0.1:9464/status" on rank 0; an empty string elsewhere and if the server
  // is off.
  std::string status_address() const;
  std::shared_ptr<prometheus::Collectable> metrics() const;  // rank 0; elsewhere null
  SessionReport report() const;                              // on rank 0: the run so far

  // Ends the run on the page.
  void finish();
  // Waits some seconds if the status page is open in a browser, so that the page shows the job's
  // last values and its end. Does nothing before finish().
  void wait_for_last_look();

 private:
  struct Parts;

  const Membership& job_;
  metrics::HeldBytes held_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cox::detail
