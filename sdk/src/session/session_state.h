// SessionState composes the parts of a session on one rank, which Session, StepScope, Reducer and
// Trainer share. The parts are the membership, the rank's end of the control plane, the actuators,
// the recorder and the engine of steps, and the calibration. SessionState knows no capability by
// name. Life: constructed -> model attached, loop declared -> ensure_started() -> steps ->
// finish(). Training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/core/reason.h"
#include "coordinator/core/units.h"
#include "coordinator/runtime/control_plane.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/step_engine.h"
#include "sdk/src/session/step_recorder.h"
#include "sdk/src/session/step_waits.h"
#include "sdk/src/session/termination.h"
#include "sdk/src/session/tick_clock.h"
#include "sdk/src/session/world.h"

namespace cox::detail {

// DeclaredLoop records which kind of loop owns the session's steps. Reducers, Trainers and adopted
// models declare themselves before the first step. An undeclared loop is only watched.
class DeclaredLoop {
 public:
  explicit DeclaredLoop(const ControlEnd& control) : control_(control) {}

  // Declares that each ballot of a reducer is a round. Every rank calls the function before the
  // control plane starts; throws cox::Error afterwards. `start_name` names the calls of the start;
  // the first name given counts.
  void declare_reducing(const char* start_name = "the start of a Reducer");
  // Declares that the steps are those of adopted models. A further declare_reducing() throws.
  void declare_adopted() { is_adopted_ = true; }
  // Allows another adoption, after the models of an adopted loop were detached.
  void begin_adopted_anew() { is_adopted_ = false; }
  bool is_adopted() const { return is_adopted_; }
  // Marks that ranks divide parameters and state, until end_sharded().
  void begin_sharded() { is_sharded_ = true; }
  void end_sharded() { is_sharded_ = false; }
  bool is_sharded() const { return is_sharded_; }

  LoopKind kind() const { return kind_; }
  bool is_reducing() const { return kind_ == LoopKind::reducing; }
  // Returns the name of the ranks' calls at the start of the control plane: "the start of a
  // Trainer".
  const char* start_name() const;

 private:
  const ControlEnd& control_;
  LoopKind kind_ = LoopKind::watching;
  bool is_adopted_ = false;
  bool is_sharded_ = false;
  const char* reducing_name_ = nullptr;
};

// Calibration measures a sample of a step before the first one, and again when the loop has another
// model. Each actuator whose settings leave a choice measures its part, in the order of the list.
// Then the policies decide the plan of the next step. Owned by the session; training thread only.
class Calibration final : private CalibrationHost {
 public:
  Calibration(Membership& job, ControlEnd& control, StepRecorder& recorder, StepEngine& step,
              const ActuatorList& actuators, const DeclaredLoop& loop)
      : job_(job),
        control_(control),
        recorder_(recorder),
        step_(step),
        actuators_(actuators),
        loop_(loop) {}

  // Returns whether the loop applies plans and run() has anything to measure. Loops call run() in
  // the first step, before its forward pass, or before the first step.
  bool is_wanted() const;
  // Returns whether settings ask for plans that this loop cannot apply.
  bool is_missing_reducer() const;
  // Measures outside of the open step's time. Collective. Throws cox::Error on all ranks after the
  // first step, and if settings cannot be met on one rank. REQUIRES: is_wanted().
  void run(const SampleStep& sample);
  // Like run(), between two later steps of a loop that has reported. A budget that cannot be met is
  // only a warning. REQUIRES: ranks open no control round (StepEngine::hold_reports).
  void run_again(const SampleStep& sample);

 private:
  void measure(const SampleStep& sample);
  transport::Communicator& ranks() override { return job_.all(); }
  runtime::MeasuredFacts& facts() override { return measured_; }
  std::vector<Reason> learn() override;
  const Plan& plan() const override { return control_.plane().plan(); }
  void forget_run() override;
  void agree(const Status& mine) override;

  Membership& job_;
  ControlEnd& control_;
  StepRecorder& recorder_;
  StepEngine& step_;
  const ActuatorList& actuators_;
  const DeclaredLoop& loop_;
  runtime::MeasuredFacts measured_;
  std::vector<Reason> told_;  // newest reasons of the policies
  bool has_run_ = false;
  bool is_again_ = false;
};

// WaitingScope books its lifetime as a wait in a call of all ranks outside of reductions. The time
// counts as communication, not as the rank's own work, and the rank's mark shows the wait.
class [[nodiscard]] WaitingScope {
 public:
  explicit WaitingScope(StepRecorder& recorder) : recorder_(recorder) {
    recorder_.begin_waiting(Clock::now());
  }
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;
  ~WaitingScope() { recorder_.end_waiting(Clock::now()); }

 private:
  StepRecorder& recorder_;
};

class SessionState {
 public:
  using MakeActuators = std::function<ActuatorList(const Membership& job)>;

  // Joins the job. Collective. Throws cox::Error.
  SessionState(int argc, const char* const* argv, SessionOptions options,
               const MakeActuators& make_actuators, const WrapRanks& wrap_ranks = {});
  ~SessionState();

  Membership& job() { return job_; }
  ControlEnd& control() { return control_; }
  ActuatorList& actuators() { return actuators_; }
  StepRecorder& recorder() { return recorder_; }
  StepWaits& waits() { return waits_; }
  StepEngine& step() { return step_; }
  Calibration& calibration() { return calibration_; }
  DeclaredLoop& loop() { return loop_; }
  // Returns the steady clock's time for sections of the step, at less cost.
  Clock::time_point now() { return clock_.now(); }

  // Attaches a model to a reducing loop and declares the loop. Throws cox::Error after
  // ensure_started().
  void attach(torch::nn::Module& model);
  // Detaches the model.
  void detach();
  // Starts the control plane, telemetry and the run directory. Collective the first time. Throws
  // cox::Error.
  void ensure_started();
  // Returns whether any rank was asked to stop. Collective.
  bool stop_asked_anywhere();
  bool stop_asked() { return step_.stop_agreed() || job_.termination().requested(); }

  void finish();

 private:
  void warn_of_idle_settings() const;
  // Throws cox::Error on all ranks if this loop does not support the setting shard.mode.
  void check_sharding() const;
  void leave_out_queueing();
  void check_end() const;
  // Ends the session of a process that exits. Returns the exit code to use.
  int leave_by_exit(int code) noexcept;
  // Ends the session of a program that is about to finalise MPI.
  void leave_by_finalize() noexcept;

  Membership job_;
  ControlEnd control_;
  ActuatorList actuators_;
  DeclaredLoop loop_;
  TickClock clock_{has_steady_ticks()};
  StepRecorder recorder_;
  StepWaits waits_;
  StepEngine step_;
  Calibration calibration_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool finished_ = false;
  ExitWatch exit_watch_;  // destroyed first
};

}  // namespace cox::detail
