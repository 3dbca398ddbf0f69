#include "sdk/src/memory/memory_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "metrics/step_row.h"
#include "sdk/src/memory/counting_allocator.h"

namespace cox::detail {
namespace {

std::uint64_t machine_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * page : 0;
}

std::uint64_t memory_limit_bytes() {
  const std::uint64_t machine = machine_memory_bytes();
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::uint64_t group = 0;  // stays 0 for "max"
  if (file >> group && group > 0) return machine > 0 ? std::min(group, machine) : group;
  return machine;
}

}  // namespace

MemoryProbe::MemoryProbe(std::int32_t ranks_on_node)
    : statm_(open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) {
  const auto sharing = static_cast<std::uint64_t>(std::max(1, ranks_on_node));
  reading_.limit_bytes = memory_limit_bytes() / sharing;
}

MemoryProbe::~MemoryProbe() {
  if (statm_ >= 0) close(statm_);
}

void MemoryProbe::begin_step() {
  if (counting_allocator_installed()) reset_counted_peak();
}

void MemoryProbe::end_step(const StepEnd&, StepOutput& output) {
  look();
  if (output.row == nullptr) return;
  metrics::StepRow& row = *output.row;
  row.memory_alloc_bytes = row.memory_reserved_bytes = reading_.used_bytes;
  row.memory_peak_alloc_bytes = row.memory_peak_reserved_bytes = reading_.peak_bytes;
  if (reading_.limit_bytes == 0) return;
  row.headroom_bytes = static_cast<std::int64_t>(reading_.limit_bytes) -
                       static_cast<std::int64_t>(reading_.peak_bytes);
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
  if (statm_ < 0 || calls_++ % kEverySteps != 0) return;
  char text[128] = {};
  if (pread(statm_, text, sizeof(text) - 1, 0) <= 0) return;
  char* resident = nullptr;
  std::strtoull(text, &resident, 10);  // total pages come first
  const std::uint64_t pages = std::strtoull(resident, nullptr, 10);
  reading_.used_bytes = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  reading_.peak_bytes = std::max(reading_.peak_bytes, reading_.used_bytes);
}

}  // namespace cox::detail
