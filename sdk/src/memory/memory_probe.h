// MemoryProbe is the actuator that reports how much memory this rank uses and may use. Where
// tensors are counted (counting_allocator.h) it tells their bytes now and at most in the step, in
// every step. Elsewhere it tells what the kernel says of the process, which it reads every few
// steps only, because a look costs more than a step may. What the rank may use is looked up once a
// second: its share of the machine and of the control groups, and never more than it has now and
// its share of what is really free. Training thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "sdk/src/blocks/actuator.h"
#include "sdk/src/memory/node_memory.h"

namespace cox::detail {

struct MemoryReading {
  std::uint64_t used_bytes = 0;   // counted or resident now
  std::uint64_t peak_bytes = 0;   // counted: most in the last step; resident: most so far
  std::uint64_t limit_bytes = 0;  // that this rank may come to use; 0 = unknown
};

class MemoryProbe final : public Actuator {
 public:
  static constexpr std::uint64_t kEverySteps = 16;
  static constexpr std::chrono::seconds kLimitEvery{1};

  // `ranks_on_node`: the ranks that share the memory, this one included.
  explicit MemoryProbe(std::int32_t ranks_on_node = 1, NodeMemory node = NodeMemory());

  const char* name() const override { return "memory"; }
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

  // Reads the memory in use now.
  void look();
  // Reads what this rank may use now.
  void look_around();
  const MemoryReading& reading() const { return reading_; }

 private:
  void look_at_process();

  const std::uint64_t sharing_;
  const NodeMemory node_;
  std::uint64_t calls_ = 0;
  std::chrono::steady_clock::time_point next_look_around_{};
  // Least bytes seen in memory that are no counted tensors: code, libraries, buffers of MPI.
  std::optional<std::uint64_t> uncounted_bytes_;
  MemoryReading reading_;
};

}  // namespace cox::detail
