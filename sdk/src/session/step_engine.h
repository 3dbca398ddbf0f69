// StepEngine is the protocol of a step, one implementation for every kind of loop. The engine runs
// the step and its telemetry; the loop decides how gradients and ballots travel. Owned by the
// session; training thread only. A step passes through these stages:
//
//   between --begin()--> computing --meet()--> met --conclude()--> agreed --end()--> between
//
// begin() applies the plan in force. meet() sends this rank's ballot and returns the merged ballots
// of all ranks: the round. conclude() applies its consequences, which are equal on all ranks, such
// as the plan of the next round. end() reports to the coordinator (ReportSpacing). A loop that only
// watches goes from computing directly to end(). An exception may end a step in any stage.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "coordinator/core/ballot.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"
#include "coxswain/reducer.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/step_recorder.h"
#include "sdk/src/session/step_waits.h"
#include "sdk/src/session/tick_clock.h"

namespace cox::detail {

enum class StepStage : std::uint8_t { between, computing, met, agreed };
enum class StepEvent : std::uint8_t { begin, meet, conclude, end };

const char* to_string(StepStage stage);
const char* to_string(StepEvent event);

// Returns the stage after `event`, or nothing if the event is not allowed in `stage`. Pure.
std::optional<StepStage> after(StepStage stage, StepEvent event);

// Merges this rank's ballot with those of all ranks. Collective; calls `pump` between its polls,
// and an exception of `pump` ends the call.
using MergeBallots = std::function<StepBallot(const StepBallot& mine, const BetweenPolls& pump)>;

// Returns the step's outcome by the merged ballot. Pure.
ReductionOutcome outcome_of(const StepBallot& merged);

// ReportSpacing decides whether the report of a step may open a control round. A round costs the
// coordinator some 70 us of CPU time, which is much of a step of one millisecond. Reports in close
// succession therefore wait, and are merged into the next one (merge_reports). The first steps
// report one by one, because policies calibrate in these steps.
class ReportSpacing {
 public:
  static constexpr std::uint64_t kFirstSteps = 100;
  static constexpr std::chrono::milliseconds kLeast{4};

  enum class Hold : bool { no, yes };
  // Delays all reports while `hold` is yes.
  void hold(Hold hold) { holds_ = hold == Hold::yes; }
  // Returns whether the report of this process's step `steps`, counted from 1, may open a round.
  bool may_open(std::uint64_t steps, Clock::time_point now) const {
    return !holds_ && (steps <= kFirstSteps || now - opened_ >= kLeast);
  }
  void opened(Clock::time_point now) { opened_ = now; }

 private:
  bool holds_ = false;
  Clock::time_point opened_{};  // when the last round was opened
};

class StepEngine {
 public:
  StepEngine(Membership& job, ControlEnd& control, const ActuatorList& actuators,
             StepRecorder& recorder, StepWaits& waits)
      : job_(job), control_(control), actuators_(actuators), recorder_(recorder), waits_(waits) {}

  // Makes rounds count from `first`. REQUIRES: the control plane has started.
  void start_at(RoundId first, LoopKind loop);
  // Sets the number of the next begin(), after a resume or rollback.
  void set_next(StepId step) { next_ = step; }

  // Begins a step under the plan in force. REQUIRES: start_at() was called, and no step is open.
  void begin();
  // Restarts the actuators in the open step, if there is one, as if the step had just begun.
  void restart();

  // Merges a ballot by `merge` and books the wait for the last rank. meet() calls gather() with the
  // step's ballot; loops also merge ballots for parts of a step. `where` names the call for
  // messages. Collective; waits by polling.
  StepBallot gather(StepBallot mine, const char* where, const MergeBallots& merge);
  // Merges this rank's part of the step's ballot (loss, weight, samples and the like) with all
  // others and returns the merged one. Collective; waits by polling. Throws cox::Error on every
  // rank, before any rank gets an average, unless all are in the same round, step and plan. The
  // error names the ranks that differ.
  StepBallot meet(StepBallot part, const char* where, const MergeBallots& merge);
  // Applies the merged ballot, which is equal on all ranks: switches plans and sets `outcome.stop`.
  // Compares the nodes' clocks at intervals, which waits for all ranks.
  void conclude(const StepBallot& merged, ReductionOutcome& outcome);
  bool stop_agreed() const { return stop_agreed_; }  // since the step began

  // Ends the open step: sends the actuators' evidence and the report.
  void end() noexcept;
  // Returns the signal that tells the control plane that this rank has no more steps. An open step
  // ends without a report.
  RankSignal last_signal();

  // Delays this rank's reports to a later step while `hold` is yes. REQUIRES: equal on all ranks.
  using Hold = ReportSpacing::Hold;
  void hold_reports(Hold hold) { spacing_.hold(hold); }
  // Told is the newest fact that the coordinator knows of this rank.
  enum class Told : std::uint8_t { nothing, steps, end };
  Told told() const { return told_; }

  StepId number() const { return recorder_.report().step; }
  RoundId round() const { return round_; }  // the round that the open step will complete
  std::uint64_t steps_ended() const { return begun_ - (stage_ == StepStage::between ? 0 : 1); }

 private:
  bool is_reducing() const { return loop_ == LoopKind::reducing; }
  // Throws cox::Error if the event is not allowed in the stage.
  void move(StepEvent event);
  void cast(StepBallot& part) const;
  std::uint64_t fingerprint() const;
  void check_together(const StepBallot& merged) const;
  std::string differences() const;
  RankSignal signal_of(const StepReport& report) const;
  StepOutput collect(const StepReport& report, metrics::StepRow* row);
  void report(RankSignal signal, std::span<const BlockEvidence> evidence);

  Membership& job_;
  ControlEnd& control_;
  const ActuatorList& actuators_;
  StepRecorder& recorder_;
  StepWaits& waits_;
  LoopKind loop_ = LoopKind::watching;
  StepStage stage_ = StepStage::between;
  StepId next_{};
  std::uint64_t begun_ = 0;  // steps of this process
  RoundId round_{};
  std::uint64_t plan_of_round_ = 0;  // number in force while the open round runs
  bool may_open_ = false;            // all ranks may open a control round with the open step
  bool stop_agreed_ = false;
  ReportSpacing spacing_;
  Told told_ = Told::nothing;
};

}  // namespace cox::detail
