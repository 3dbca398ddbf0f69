#include "sdk/src/blocks/visit_watch.h"

#include <algorithm>
#include <utility>

namespace cox::detail {

bool ForwardPass::is_over_at(const VisitBegin& visit) const {
  if (!first_ || !has_left_ || first_->block != visit.block) return false;
  if (first_->parameter == visit.parameter && first_->reader == visit.reader) return true;
  const std::int64_t live = live_bytes();
  return live > 0 && (most_held_bytes_ <= 0 || 2 * (live - bytes_at_first_) < most_held_bytes_);
}

void ForwardPass::note(const VisitBegin& visit) {
  const std::int64_t live = live_bytes();
  if (!first_) {
    first_ = visit;
    bytes_at_first_ = live;
  }
  has_left_ = has_left_ || first_->block != visit.block;
  most_held_bytes_ = std::max(most_held_bytes_, live - bytes_at_first_);
}

void ForwardPass::end() {
  first_.reset();
  has_left_ = false;
  most_held_bytes_ = 0;
}

void VisitWatch::add_block(std::string name, std::uint64_t elements) {
  parts_.steering.add_block(std::move(name));
  parts_.clock.add_block(elements);
  is_entered_.push_back(false);
}

void VisitWatch::release() {
  leave_block();
  parts_.clock.measure(MeasureMode::off);
  parts_.clock.report_to(nullptr);
  parts_.steering.release();
  parts_.region.set_offload(nullptr);
  parts_.meter.count(OperatorMeter::Counting::off);
  parts_.pass.count_with(nullptr);
  observer_ = nullptr;
}

VisitWatch::Begins VisitWatch::read_parameter(const BlockMap& map, BlockId::rep first,
                                              const Read& read, Told observer) {
  enter_block_of(map, first, read.storage);
  Begins begins = Begins::nothing;
  if (std::exchange(is_new_visit_, false))
    begins = begin_visit({*current_, read.storage, read.reader});
  parts_.region.leave_alone(read.storage);
  if (observer_ != nullptr && observer == Told::yes)
    observer_->parameter(*current_, parts_.steering.narrow_format(*current_));
  return begins;
}

void VisitWatch::enter_block_of(const BlockMap& map, BlockId::rep first,
                                const c10::StorageImpl* storage) {
  const std::optional<BlockId> local = map.block_of(storage);
  if (!scopes_.empty()) {
    if (current_ != scopes_.back().block) enter(scopes_.back().block);
  } else if (local || !current_) {
    const BlockId::rep number = local ? local->value() : map.owner(storage)->value();
    const BlockId block(static_cast<BlockId::rep>(first + number));
    if (current_ != block) enter(block);
  }
}

VisitWatch::Begins VisitWatch::begin_visit(const VisitBegin& visit) {
  const bool begins_pass = parts_.pass.is_over_at(visit);
  if (begins_pass) {
    leave_block();
    enter(visit.block);
    is_new_visit_ = false;
  }
  parts_.pass.note(visit);
  return begins_pass ? Begins::pass : Begins::visit;
}

void VisitWatch::enter(BlockId block) {
  if (current_) parts_.clock.visit_ended(*current_);
  current_ = block;
  is_new_visit_ = true;
  if (!is_entered_[block.value()]) open_region(block);
  parts_.clock.visit_begins(block);
}

void VisitWatch::leave_block() {
  if (current_) parts_.clock.visit_ended(*current_);
  close_region();
  parts_.comparison.operator_ended();
  current_.reset();
  parts_.pass.end();
  is_entered_.assign(is_entered_.size(), false);
}

void VisitWatch::open_region(BlockId block) {
  close_region();
  is_entered_[block.value()] = true;
  parts_.region.open(block);
  parts_.clock.region_begins(block);
}

void VisitWatch::close_region() {
  const std::optional<BlockId> block = parts_.region.block();
  parts_.region.close();
  if (block) parts_.clock.region_ended(*block);
}

void VisitWatch::steer_anew(Anew what) {
  if (what == Anew::pass) return leave_block();
  const std::optional<BlockId> region = parts_.region.block();
  if (region && region == current_) open_region(*region);
}

// A forward pass that has not begun starts with the first parameter, in the scope's block.
void VisitWatch::begin_scope(std::string_view name) {
  const BlockId block = parts_.steering.find(name);
  scopes_.push_back({block, current_});
  if (current_ && current_ != block) enter(block);
}

void VisitWatch::end_scope() noexcept {
  const Scope ended = scopes_.back();
  scopes_.pop_back();
  const std::optional<BlockId> next = scopes_.empty() ? ended.around : scopes_.back().block;
  if (current_ && next && current_ != next) enter(*next);
}

void VisitWatch::backward_begins() {
  leave_block();
  parts_.clock.backward_begins();
}

void VisitWatch::end_step() {
  leave_block();
  pin_unequal();
  parts_.clock.end_step();
}

void VisitWatch::forget_step() {
  leave_block();
  pin_unequal();
  parts_.meter.forget();
  parts_.clock.forget_step();
}

void VisitWatch::pin_unequal() {
  for (const BlockId region : parts_.comparison.take_unequal())
    parts_.steering.pin(region,
                        "memory.verify_steps found different bits in backward than in forward");
}

}  // namespace cox::detail
