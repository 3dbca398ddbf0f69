#include "coordinator/runtime/plan_book.h"

namespace cox::runtime {

PlanBook::PlanBook(const JobFacts& job, Plan first)
    : assembler_(job, first), active_(std::move(first)) {}

void PlanBook::hold(std::span<const std::byte> frame) {
  const auto fed = assembler_.feed(frame);
  if (!fed.ok()) {
    ++frame_errors_;
    full_plan_wanted_ = true;
    return;
  }
  if (*fed == wire::Assembly::base_unknown) full_plan_wanted_ = true;
  if (*fed == wire::Assembly::complete) full_plan_wanted_ = false;
}

void PlanBook::agree(RoundId round, const StepBallot& merged) {
  const Plan& held = assembler_.held();
  const bool everybody_holds_it = merged.plan_held_min >= held.id.number;
  const bool is_newer = held.id.number > active_.id.number;
  if (!is_newer || !everybody_holds_it || round.next() < held.earliest_round) return;
  next_ = held;
  next_->activated_round = round.next();
}

void PlanBook::begin_round() {
  if (!next_) return;
  active_ = std::move(*next_);
  next_.reset();
}

}  // namespace cox::runtime
