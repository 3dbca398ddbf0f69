// SessionState composes the parts of a session on one rank, which Session, StepScope, Reducer and
// Trainer share: the membership in the job, the rank's end of the control plane, the list of
// actuators, the recorder and the engine of steps, and the calibration before the first one. It
// knows no capability by name. Life: constructed -> model attached, loop declared ->
// ensure_started() -> steps -> finish(). Training thread only.
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

// DeclaredLoop says whose the session's steps are: Reducers, Trainers and adopted models declare it
// before the first step. A loop that nobody declares is only watched.
class DeclaredLoop {
 public:
  explicit DeclaredLoop(const ControlEnd& control) : control_(control) {}

  // Makes a reducer's ballots the rounds. Every rank calls it before the control plane starts;
  // throws cox::Error afterwards. `start_name` names the calls of the start; the first one holds.
  void declare_reducing(const char* start_name = "the start of a Reducer");
  // From here on the steps are those of adopted models: a further declare_reducing() throws.
  void declare_adopted() { is_adopted_ = true; }
  // The models of an adopted loop are detached, and others are about to be adopted.
  void begin_adopted_anew() { is_adopted_ = false; }
  bool is_adopted() const { return is_adopted_; }
  // Ranks divide what they hold, from here on until end_sharded().
  void begin_sharded() { is_sharded_ = true; }
  void end_sharded() { is_sharded_ = false; }
  bool is_sharded() const { return is_sharded_; }

  LoopKind kind() const { return kind_; }
  bool is_reducing() const { return kind_ == LoopKind::reducing; }
  // Returns what the ranks do when they start the control plane: "the start of a Trainer".
  const char* start_name() const;

 private:
  const ControlEnd& control_;
  LoopKind kind_ = LoopKind::watching;
  bool is_adopted_ = false;
  bool is_sharded_ = false;
  const char* reducing_name_ = nullptr;
};

// Calibration measures a sample of a step before the first one, and again when the loop has another
// model. It asks every actuator whose settings leave something to choose to measure its part, in
// the order of the list, and lets the policies decide the plan that the next step runs under. Owned
// by the session; training thread only.
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

  // Returns whether the loop carries plans out and run() has anything to measure. Loops call run()
  // in the first step, before its forward pass, or before that step.
  bool is_wanted() const;
  // Returns whether settings ask for plans that nothing in this loop carries out.
  bool is_missing_reducer() const;
  // Takes no part of the open step's time. Collective. Throws cox::Error on all ranks after the
  // first step, and when settings cannot be met on one. REQUIRES: is_wanted().
  void run(const SampleStep& sample);
  // The same between two later steps, of a loop that has reported and whose ranks open no control
  // round (StepEngine::hold_reports). A budget that cannot be met is a warning.
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
  std::vector<Reason> told_;  // the newest that the policies gave
  bool has_run_ = false;
  bool is_again_ = false;
};

// Time that a rank waits in a call of all ranks outside of reductions: it is communication, not the
// rank's own work, and its mark says so.
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
  // Returns the moment for sections of the step: the steady clock's, read at less cost.
  Clock::time_point now() { return clock_.now(); }

  // Lets a model take part in a reducing loop, which is declared by it. Throws cox::Error after
  // ensure_started().
  void attach(torch::nn::Module& model);
  // Lets the model no longer take part.
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
  // Throws cox::Error on all ranks where shard.mode asks for what this loop cannot have.
  void check_sharding() const;
  void leave_out_queueing();
  void check_end() const;
  // Ends the session of a process that exits; returns its code.
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
  ExitWatch exit_watch_;  // ends before all else
};

}  // namespace cox::detail
