#include "coordinator/runtime/plan_book.h"

namespace cox::runtime {
namespace {

bool is_full_plan(std::span<const std::byte> frame, const PlanId& id) {
  const auto view = wire::open_frame(frame);
  return view.ok() && view->header.kind == wire::FrameKind::full && view->header.id == id;
}

}  // namespace

PlanBook::PlanBook(const JobFacts& job, Plan first)
    : assembler_(job, first), active_(std::move(first)) {}

void PlanBook::hold(std::span<const std::byte> frame) {
  const auto fed = assembler_.feed(frame);
  if (!fed.ok()) return note_damage();
  if (*fed == wire::Assembly::base_unknown) full_plan_wanted_ = true;
  if (*fed == wire::Assembly::complete) full_plan_wanted_ = false;
  // The damaged frame held nothing new: the plan that is held already answers the request.
  const bool is_answer = full_plan_wanted_ && *fed == wire::Assembly::nothing_new;
  if (is_answer && is_full_plan(frame, assembler_.held().id)) full_plan_wanted_ = false;
}

void PlanBook::note_damage() {
  ++frame_errors_;
  full_plan_wanted_ = true;
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
