#include "sdk/src/stream/region_meter.h"

#include <algorithm>
#include <utility>

namespace cox::detail {

RegionMeter::RegionMeter(Clock now_ns, ReadMemory memory)
    : now_ns_(std::move(now_ns)), read_memory_(std::move(memory)) {}

void RegionMeter::begin_operator() {
  const std::lock_guard lock(mutex_);
  if (read_memory_) live_bytes_ = read_memory_().live_bytes;
  paused_ns_ = 0;
  started_ns_ = now_ns_();
}

OperatorCost RegionMeter::end_operator() {
  OperatorCost cost{now_ns_() - started_ns_ - paused_ns_, 0};
  const std::lock_guard lock(mutex_);
  if (!read_memory_) return cost;
  const MemoryLevel now = read_memory_();
  cost.own_bytes =
      std::max<std::int64_t>(0, now.peak_bytes - std::max(live_bytes_, now.live_bytes));
  return cost;
}

planner::BackwardLevels& RegionMeter::levels_of(std::int32_t op, std::int64_t live_bytes) {
  const auto known = std::ranges::find(backward_, op, &planner::BackwardLevels::op);
  if (known != backward_.end()) return *known;
  return backward_.emplace_back(planner::BackwardLevels{op, live_bytes, live_bytes});
}

// The peak during a request is memory of the replay, which the planner computes. Memory until the
// next request belongs to the operator whose tensors backward had last.
void RegionMeter::note(std::int32_t op, Moment moment) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!read_memory_) return;
    const MemoryLevel now = read_memory_();
    if (moment != Moment::has && running_ >= 0) {
      planner::BackwardLevels& last = levels_of(running_, now.live_bytes);
      last.most_bytes = std::max(last.most_bytes, now.peak_bytes);
    }
    if (moment == Moment::lets_go) return;
    running_ = -1;
    if (op < 0) return;
    planner::BackwardLevels& its = levels_of(op, now.live_bytes);
    if (moment == Moment::asks) return;
    its.most_bytes = std::max(its.most_bytes, now.live_bytes);
    running_ = op;
  } catch (const std::exception&) {
    read_memory_ = nullptr;  // known levels stay
  }
}

std::vector<planner::BackwardLevels> RegionMeter::end() {
  const std::lock_guard lock(mutex_);
  read_memory_ = nullptr;
  return std::exchange(backward_, {});
}

}  // namespace cox::detail
