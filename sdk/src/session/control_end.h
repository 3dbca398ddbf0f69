// ControlEnd is this rank's end of the control plane. Owns the rank's run directory, telemetry, and
// the watches over deaths, stalls and the machine. Created by the session; start() starts all
// parts. Training thread only; rank 0's coordinator runs on a thread of its own below.
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
  // `program` is the name for run.json.
  ControlEnd(const Membership& job, PolicySet policies, std::string program);
  // After close(), waits some seconds if the status page is open in a browser, so that the page
  // shows the job's last values and its end.
  ~ControlEnd();

  // Sets the control state of a resumed run. Only rank 0's state is used. REQUIRES: start() was not
  // called.
  void restore(ControlState state) { restored_ = std::move(state); }

  // Starts the control plane, telemetry and the run directory. Collective. Throws cox::Error on all
  // ranks if the port is taken, or the run directory cannot be used or belongs to another job.
  // `loop` decides whether masks go over NCCL, as they do for loops that apply plans.
  void start(JobFacts facts, LoopKind loop);
  bool is_started() const { return plane_ != nullptr; }

  // REQUIRES: is_started().
  runtime::ControlPlane& plane() { return *plane_; }
  const runtime::ControlPlane& plane() const { return *plane_; }
  // Returns once NCCL has enqueued the masks that it was given, or after control.nccl_seconds.
  // Gradients then follow masks on this rank's device, as on every other rank. Does not wait for a
  // device.
  void send_masks_off();
  // Decides the first plan anew and returns rank 0's reasons. Collective. Throws cox::Error.
  std::vector<Reason> learn(const runtime::MeasuredFacts& facts);

  RunDirectory& directory() { return directory_; }
  Telemetry& telemetry() { return telemetry_; }
  // Writes the operators of this rank into its run directory, and shows rank 0's on its pages.
  void keep(std::shared_ptr<const OperatorTable> operators);

  // Returns a copy of the coordinator's state, on rank 0.
  std::optional<ControlState> state() const { return plane_ ? plane_->state() : std::nullopt; }

  // Reports the last signal and waits (polling) until no rank needs this one. Collective. Returns
  // failed_precondition if others wait for this rank in a later round.
  Status finish(const RankSignal& last) { return plane_->finish(last); }
  // Closes telemetry and the run directory.
  void close();
  // Records in the rank's mark that the job ends by an error which this rank reports itself.
  void explain_end() {
    if (plane_) plane_->mark().explain_end();
  }
  // Returns whether a DeathWatch reports an early end of this rank's process.
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
  std::optional<transport::Lifeline> line_;       // through which deaths_ watches this rank
  RunDirectory directory_;
  std::unique_ptr<HostRecorder> host_;  // reads the marks of plane_
};

}  // namespace cox::detail
