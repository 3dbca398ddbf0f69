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
#include "sdk/src/session/tick_clock.h"
#include "sdk/src/session/world.h"

namespace cox::detail {

// Calibration measures a sample of a step before the first one. It asks every actuator whose
// settings leave something to choose to measure its part, in the order of the list, and lets the
// policies decide the plan that the first step runs under. Owned by the session; training thread
// only.
class Calibration final : private CalibrationHost {
 public:
  Calibration(Membership& job, ControlEnd& control, StepRecorder& recorder, StepEngine& step,
              const ActuatorList& actuators)
      : job_(job), control_(control), recorder_(recorder), step_(step), actuators_(actuators) {}

  // Returns whether run() has anything to measure. It is called in the first step, before its
  // forward pass, or before that step.
  bool is_wanted() const;
  // Takes no part of the open step's time. Collective. Throws cox::Error on all ranks after the
  // first step, and when settings cannot be met on one. REQUIRES: is_wanted().
  void run(const SampleStep& sample);

 private:
  transport::Communicator& ranks() override { return job_.all(); }
  runtime::MeasuredFacts& facts() override { return measured_; }
  std::vector<Reason> learn() override;
  const Plan& plan() const override { return control_.plane().plan(); }
  void forget_run() override;
  void agree(const Status& mine) override { job_.agree(mine); }

  Membership& job_;
  ControlEnd& control_;
  StepRecorder& recorder_;
  StepEngine& step_;
  const ActuatorList& actuators_;
  runtime::MeasuredFacts measured_;
  std::vector<Reason> told_;  // the newest that the policies gave
  bool has_run_ = false;
};

// Time that a rank waits in a call of all ranks outside of reductions: it is communication, not the
// rank's own work, and its mark says so.
class [[nodiscard]] WaitingScope {
 public:
  explicit WaitingScope(StepRecorder& recorder);
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;
  ~WaitingScope();

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
  // Returns the moment for sections of the step: the steady clock's, read at less cost.
  Clock::time_point now() { return clock_.now(); }

  // Let a model take part, or no longer. attach() throws cox::Error after ensure_started().
  void attach(torch::nn::Module& model);
  void detach();
  // Makes a reducer's ballots the rounds. Every rank calls it before ensure_started(); throws
  // cox::Error afterwards. `start_name` names the calls of the start: "the start of a Trainer".
  void declare_reducing(const char* start_name = "the start of a Reducer");
  bool is_reducing() const { return loop_ == LoopKind::reducing; }
  // Returns whether the loop carries plans out and something is to be measured for the first one.
  bool wants_calibration() const { return is_reducing() && calibration_.is_wanted(); }
  // From here on the steps are those of adopted models: a further declare_reducing() throws.
  void declare_adopted() { is_adopted_ = true; }
  // Starts the control plane, telemetry and the run directory. Collective the first time. Throws
  // cox::Error.
  void ensure_started();
  bool is_started() const { return control_.is_started(); }
  // Returns whether settings ask for plans that nothing in this loop carries out.
  bool is_missing_reducer() const;

  // Returns whether any rank was asked to stop. Collective.
  bool stop_asked_anywhere();
  bool stop_asked() { return step_.stop_agreed() || job_.termination().requested(); }

  void finish();

 private:
  void warn_of_idle_settings() const;
  void leave_out_queueing();
  const char* start_name() const;

  Membership job_;
  ControlEnd control_;
  ActuatorList actuators_;
  LoopKind loop_ = LoopKind::watching;
  TickClock clock_{has_steady_ticks()};
  StepRecorder recorder_;
  StepWaits waits_;
  StepEngine step_;
  Calibration calibration_;
  bool finished_ = false;
  bool is_adopted_ = false;
  const char* reducing_name_ = nullptr;
};

}  // namespace cox::detail
