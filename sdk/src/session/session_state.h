// SessionState composes the parts of a session on one rank, which Session, StepScope, Reducer and
// Trainer share: the membership in the job, the rank's end of the control plane, the list of
// actuators, and the two parts that live here: the open step and the calibration before the first
// one. It knows no capability by name. Life: constructed -> model attached, loop declared ->
// ensure_started() -> steps -> finish(). Training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/units.h"
#include "coordinator/runtime/control_plane.h"
#include "coxswain/named_tensor.h"
#include "coxswain/session.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/parallel/slow_wait.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/step_recorder.h"
#include "sdk/src/session/tick_clock.h"

namespace cox {
struct ReductionReport;
}

namespace cox::detail {

// OpenStep is the step that this rank is in, from begin() to end(). It has the recorder of its
// time, the round that it will complete, the plan in force, and this rank's part of the ballot that
// switches plans. At its end the report goes to the coordinator and a row to the run directory.
// begin() and end() call the actuators. Owned by the session; training thread only.
class OpenStep {
 public:
  OpenStep(Membership& job, ControlEnd& control, const ActuatorList& actuators)
      : job_(job), control_(control), actuators_(actuators) {}

  StepRecorder& recorder() { return recorder_; }
  const StepRecorder& recorder() const { return recorder_; }

  // Returns what kind of loop this is. It watches until a reducer calls set_reducing(), before the
  // first round.
  LoopKind loop() const { return loop_; }
  void set_reducing() { loop_ = LoopKind::reducing; }
  bool is_reducing() const { return loop_ == LoopKind::reducing; }

  // The control plane has started; rounds count from here.
  void start_at(RoundId first);
  // The number that the next begin() takes (after a resume or rollback).
  void set_next(StepId step) { next_ = step; }

  // REQUIRES: the control plane has started, and no step is open.
  void begin();
  void end() noexcept;
  // While `hold` is yes this rank's reports wait for a later step. Every rank holds them or none.
  enum class Hold : bool { no, yes };
  void hold_reports(Hold hold) { holds_reports_ = hold == Hold::yes; }
  bool has_reported() const { return has_reported_; }
  // The open step was the last one of an epoch: until the next one the loop does what is due then.
  void end_epoch() { recorder_.do_aside(Activity::epoch, Clock::now()); }
  // Lets the actuators go on with the open step, if there is one, as if it had just begun.
  void restart();

  // Returns the moment for sections of the step: the steady clock's, read at less cost.
  Clock::time_point now() { return clock_.now(); }

  StepId number() const { return recorder_.report().step; }
  RoundId round() const { return round_; }  // the one that the open step will complete
  std::uint64_t steps_ended() const { return begun_ - (recorder_.is_open() ? 1 : 0); }

  // Returns what this rank brings into the step's reduction, without loss and weight.
  StepBallot ballot() const;
  // Throws cox::Error on every rank, before an average is handed to any, unless the merged ballot
  // says that all are in the same round, step and plan; it names those that are not. Collective.
  void check_together(const StepBallot& merged) const;
  // Takes over what the reduction gave, which is equal on all ranks. Switches plans, and compares
  // the nodes' clocks where it is time: then it waits for all ranks.
  void agreed(const StepBallot& merged);

  // Keeps when the buckets of the open step's reduction were summed, in steps whose record tells
  // it. Nothing is kept where phases are timed on a device: the host sees their sums at other
  // times.
  void note_buckets(const ReductionReport& reduction);

  // Returns the present moment on a clock that all ranks share: before a call of all ranks, once
  // this rank has given its part. all_arrived() then books the wait for the last one.
  ArrivalStamp arrive() const { return job_.clocks().stamp(); }
  void all_arrived(const ArrivalStamp& mine, const ArrivalStamp& latest) {
    recorder_.waited(waiting_seconds(mine, latest));
  }

  // Watches a wait of the open step for the other ranks: `where` is the call that waits.
  SlowWait slow_wait(const char* where) const;
  // Between the polls of that wait: moves the control plane on, and the rank's mark.
  void pump(SlowWait& wait);
  // Returns what watches any other wait for all ranks, within steps or between them, so that a rank
  // that has left is an error there as well. It must not outlive this.
  BetweenPolls attend(const char* where) const;

  bool stop_agreed() const { return stop_agreed_; }  // by a reducer; equal on all ranks

  // Returns the signal that tells the control plane that this rank has no more steps.
  RankSignal last_signal();

 private:
  std::uint64_t fingerprint() const;
  void compare_clocks();
  void compare(const char* what, std::uint64_t mine, std::string& differences) const;
  RankSignal signal_of(const StepReport& report) const;

  Membership& job_;
  ControlEnd& control_;
  const ActuatorList& actuators_;
  StepRecorder recorder_;
  TickClock clock_{has_steady_ticks()};
  LoopKind loop_ = LoopKind::watching;
  StepId next_{};
  std::optional<metrics::StepBuckets> buckets_;  // of the open step; none as a rule
  std::uint64_t begun_ = 0;                      // steps of this process
  RoundId round_{};
  RoundId marked_{};                 // the first round that is not complete on this rank
  std::uint64_t plan_of_round_ = 0;  // number in force while the open round runs
  bool open_control_round_ = false;  // the merged ballot says that all may open one
  bool stop_agreed_ = false;
  bool holds_reports_ = false;
  bool has_reported_ = false;
};

// Calibration measures a sample of a step before the first one. It asks every actuator whose
// settings leave something to choose to measure its part, in the order of the list, and lets the
// policies decide the plan that the first step runs under. Owned by the session; training thread
// only.
class Calibration final : private CalibrationHost {
 public:
  Calibration(Membership& job, ControlEnd& control, OpenStep& step, const ActuatorList& actuators)
      : job_(job), control_(control), step_(step), actuators_(actuators) {}

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
  OpenStep& step_;
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
  const ControlEnd& control() const { return control_; }
  ActuatorList& actuators() { return actuators_; }
  OpenStep& step() { return step_; }
  const OpenStep& step() const { return step_; }
  Calibration& calibration() { return calibration_; }

  // Let a model take part, or no longer. attach() throws cox::Error after ensure_started().
  void attach(torch::nn::Module& model);
  void detach();
  // Makes a reducer's ballots the rounds. Every rank calls it before ensure_started(); throws
  // cox::Error afterwards.
  void declare_reducing();
  // From here on the steps are those of adopted models: a further declare_reducing() throws.
  void declare_adopted() { is_adopted_ = true; }
  // Starts the control plane, telemetry and the run directory. Collective the first time. Throws
  // cox::Error.
  void ensure_started();
  bool is_started() const { return control_.is_started(); }
  // Returns whether settings ask for plans that nothing in this loop carries out.
  bool is_missing_reducer() const;

  void begin_step();

  // Returns whether any rank was asked to stop. Collective.
  bool stop_asked_anywhere();
  bool stop_asked() { return step_.stop_agreed() || job_.termination().requested(); }

  // Returns, on rank `to`, what actuators remember on each rank, one tensor a rank, for a save
  // between steps. Empty where nothing is remembered. Collective. Throws cox::Error.
  std::vector<NamedTensor> saved_rows(RankId to = kRoot);
  // Hands what was saved to the actuators, after the reducer was made. Where it is of another world
  // size or does not fit, the actuator starts anew, and the log says so.
  void load_rows(std::span<const NamedTensor> saved);

  void finish();

 private:
  void warn_of_idle_settings() const;
  void leave_out_queueing();
  void load_row(Saving& saving, std::span<const NamedTensor> saved);

  Membership job_;
  ControlEnd control_;
  ActuatorList actuators_;
  OpenStep step_;
  Calibration calibration_;
  bool finished_ = false;
  bool is_adopted_ = false;
};

}  // namespace cox::detail
