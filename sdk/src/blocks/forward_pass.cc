#include "sdk/src/blocks/forward_pass.h"

#include <algorithm>

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

}  // namespace cox::detail
