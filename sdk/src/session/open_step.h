// OpenStep is the step that this rank is in, from begin() to end(). It has the recorder of its
// time, the round that it will complete, the plan in force, and this rank's part of the ballot that
// switches plans. At its end the report goes to the coordinator and a row to the run directory.
// begin() and end() call the actuators. Training thread only.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/ballot.h"
#include "coordinator/core/units.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/parallel/slow_wait.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

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
  // Lets the actuators go on with the open step, if there is one, as if it had just begun.
  void restart();

  StepId number() const { return recorder_.report().step; }
  RoundId round() const { return round_; }  // the one that the open step will complete
  std::uint64_t steps_ended() const { return begun_ - (recorder_.is_open() ? 1 : 0); }

  // Returns what this rank brings into the step's reduction, without loss and weight.
  StepBallot ballot() const;
  // Throws cox::Error on every rank, before an average is handed to any, unless the merged ballot
  // says that all are in the same round, step and plan; it names those that are not. Collective.
  void check_together(const StepBallot& merged) const;
  // Takes over what the reduction gave, which is equal on all ranks. Switches plans.
  void agreed(const StepBallot& merged);

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
  void compare(const char* what, std::uint64_t mine, std::string& differences) const;
  RankSignal signal_of(const StepReport& report) const;

  Membership& job_;
  ControlEnd& control_;
  const ActuatorList& actuators_;
  StepRecorder recorder_;
  LoopKind loop_ = LoopKind::watching;
  StepId next_{};
  std::uint64_t begun_ = 0;  // steps of this process
  RoundId round_{};
  RoundId marked_{};                 // the first round that is not complete on this rank
  std::uint64_t plan_of_round_ = 0;  // number in force while the open round runs
  bool open_control_round_ = false;  // the merged ballot says that all may open one
  bool stop_agreed_ = false;
  bool holds_reports_ = false;
  bool has_reported_ = false;
};

}  // namespace cox::detail
