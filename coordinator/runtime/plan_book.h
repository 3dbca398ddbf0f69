// PlanBook: the plan that a rank holds and the plan that it applies. A plan arrives as frames at
// any time (hold). The plan becomes active in the round after the one whose merged ballot showed
// that every rank holds it (agree). All ranks get the same ballots, so all switch in the same round
// and none waits. Owned by one rank's training thread; does not communicate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "coordinator/core/ballot.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {

class PlanBook {
 public:
  // Starts with `first` (number 0) held and active.
  PlanBook(const JobFacts& job, Plan first);

  // Accepts one frame of a mask. A damaged frame is counted and makes full_plan_wanted() true until
  // the newest plan came whole. Such a frame never changes the held or the active plan.
  void hold(std::span<const std::byte> frame);

  // Counts a frame that was lost or damaged beyond recognition, as hold() counts a damaged one.
  void note_damage();

  // Applies the ballot merged over all ranks: decides whether another plan is active from `round` +
  // 1 on. REQUIRES: every rank calls agree() once a round with equal arguments.
  void agree(RoundId round, const StepBallot& merged);
  // Opens the next round: from now on active() is the plan agreed on, if there is a new one.
  void begin_round();

  std::uint64_t held_number() const { return assembler_.held().id.number; }
  const Plan& active() const { return active_; }
  bool full_plan_wanted() const { return full_plan_wanted_; }
  std::uint32_t frame_errors() const { return frame_errors_; }

 private:
  wire::PlanAssembler assembler_;
  Plan active_;
  std::optional<Plan> next_;
  bool full_plan_wanted_ = false;
  std::uint32_t frame_errors_ = 0;
};

}  // namespace cox::runtime
