// ControlEnd is this rank's end of the control plane. Owns the rank's run directory, telemetry,
// and the watches over deaths, stalls and the machine. The session makes it; start() starts it all.
// Training thread only; rank 0's coordinator runs on a thread of its own below.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/operator_table.h"
#include "coordinator/core/reason.h"
#include "coordinator/decide/decide.h"
#include "coordinator/decide/policy.h"
#include "coordinator/runtime/control_plane.h"
#include "coordinator/runtime/death_watch.h"
#include "coordinator/transport/shared/lifeline.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/run_directory.h"
#include "sdk/src/session/telemetry.h"

namespace cox::detail {

class HostRecorder;

class ControlEnd {
 public:
  // `program`: for run.json.
  ControlEnd(const Membership& job, PolicySet policies, std::string program);
  // After close() it waits some seconds where the status page is open in a browser, so that the
  // page shows the job's last values and its end.
  ~ControlEnd();

  // Sets the control state of the run that is resumed; only rank 0's is used. REQUIRES: start() was
  // not called.
  void restore(ControlState state) { restored_ = std::move(state); }

  // Starts the control plane, telemetry and the run directory. Collective. Throws cox::Error on all
  // ranks when the port is taken, or the run directory cannot be used or is another job's. `loop`:
  // masks go over NCCL where plans act.
  void start(JobFacts facts, LoopKind loop);
  bool is_started() const { return plane_ != nullptr; }

  // REQUIRES: is_started().
  runtime::ControlPlane& plane() { return *plane_; }
  const runtime::ControlPlane& plane() const { return *plane_; }
  // Returns when NCCL has handed over what it was given of masks, so that gradients come to this
  // rank's device behind it, as on every other rank; or after control.nccl_seconds. Waits for no
  // device.
  void send_masks_off();
  // Decides the first plan anew; returns rank 0's reasons. Collective. Throws cox::Error.
  std::vector<Reason> learn(const runtime::MeasuredFacts& facts);

  RunDirectory& directory() { return directory_; }
  Telemetry& telemetry() { return telemetry_; }
  // Writes the operators of this rank into its run directory, and shows rank 0's on its pages.
  void keep(std::shared_ptr<const OperatorTable> operators);

  // Returns, on rank 0, a copy of what the coordinator knows.
  std::optional<ControlState> state() const { return plane_ ? plane_->state() : std::nullopt; }

  // Reports the last signal and waits (polling) until no rank needs this one. Collective.
  // failed_precondition when others wait for this rank in a round to come.
  Status finish(const RankSignal& last) { return plane_->finish(last); }
  // Closes telemetry and the run directory.
  void close();
  // The job ends here by an error that this rank tells.
  void explain_end() {
    if (plane_) plane_->mark().explain_end();
  }
  // Returns whether somebody tells how this rank's process ends, if it ends early.
  bool is_watched() const { return line_.has_value(); }

 private:
  void watch_stalls(runtime::ControlPlaneSetup& setup);
  void watch_deaths();
  void watch_host();

  const Membership& job_;
  PolicySet policies_;
  std::optional<ControlState> restored_;
  Telemetry telemetry_;                           // outlives the coordinator's thread
  std::unique_ptr<runtime::ControlPlane> plane_;  // from start() on
  std::unique_ptr<runtime::DeathWatch> deaths_;   // rank 0, of a job of one node
  std::optional<transport::Lifeline> line_;       // by which deaths_ sees this rank
  RunDirectory directory_;
  std::unique_ptr<HostRecorder> host_;  // reads the marks of plane_
};

}  // namespace cox::detail
