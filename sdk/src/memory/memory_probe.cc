#include "sdk/src/memory/memory_probe.h"

#include <algorithm>
#include <utility>

#include "metrics/step_row.h"
#include "sdk/src/memory/counting_allocator.h"

namespace cox::detail {

MemoryProbe::MemoryProbe(std::int32_t ranks_on_node, NodeMemory node)
    : sharing_(static_cast<std::uint64_t>(std::max(1, ranks_on_node))), node_(std::move(node)) {
  look_around();
}

void MemoryProbe::begin_step() {
  if (counting_allocator_installed()) reset_counted_peak();
}

void MemoryProbe::end_step(const StepEnd&, StepOutput& output) {
  look();
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_look_around_) {
    look_around();
    next_look_around_ = now + kLimitEvery;
  }
  if (output.row == nullptr) return;
  metrics::StepRow& row = *output.row;
  row.memory_alloc_bytes = row.memory_reserved_bytes = reading_.used_bytes;
  row.memory_peak_alloc_bytes = row.memory_peak_reserved_bytes = reading_.peak_bytes;
  if (reading_.limit_bytes == 0) return;
  const std::uint64_t used = std::min(reading_.limit_bytes, reading_.peak_bytes);
  row.headroom_bytes = static_cast<std::int64_t>(reading_.limit_bytes - used);
}

void MemoryProbe::sign(RankSignal& signal) const {
  signal.memory_used_bytes = reading_.used_bytes;
  signal.memory_peak_bytes = reading_.peak_bytes;
  signal.memory_limit_bytes = reading_.limit_bytes;
}

void MemoryProbe::look() {
  if (!counting_allocator_installed()) return look_at_process();
  const MemoryCount count = counted_memory();
  reading_.used_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, count.live_bytes));
  reading_.peak_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, count.peak_bytes));
}

void MemoryProbe::look_at_process() {
  if (calls_++ % kEverySteps != 0) return;
  const std::uint64_t resident = node_.resident_bytes();
  if (resident == 0) return;
  reading_.used_bytes = resident;
  reading_.peak_bytes = std::max(reading_.peak_bytes, reading_.used_bytes);
}

void MemoryProbe::look_around() {
  const NodeReading node = node_.look();
  const std::uint64_t share = node.limit_bytes / sharing_;
  reading_.limit_bytes = share;
  const std::uint64_t resident = node_.resident_bytes();
  if (!node.free_bytes || resident == 0) return;
  std::uint64_t uncounted = 0;
  if (counting_allocator_installed()) {
    const auto live =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, counted_memory().live_bytes));
    const std::uint64_t now = resident - std::min(resident, live);
    // What exceeds the least is memory of tensors that the heap has kept, to use again.
    uncounted_bytes_ = std::min(now, uncounted_bytes_.value_or(now));
    uncounted = *uncounted_bytes_;
  }
  const std::uint64_t reachable =
      resident - std::min(resident, uncounted) + *node.free_bytes / sharing_;
  reading_.limit_bytes = share == 0 ? reachable : std::min(share, reachable);
}

}  // namespace cox::detail
