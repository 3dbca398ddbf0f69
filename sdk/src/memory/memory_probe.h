// MemoryProbe is the actuator that reports how much memory this rank uses and may use. Where
// tensors are counted (counting_allocator.h) it tells their bytes now and at most in the step, in
// every step. Elsewhere it tells what the kernel says of the process, which it reads every few
// steps only, because a look costs more than a step may. Training thread only.
#pragma once

#include <cstdint>

#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

struct MemoryReading {
  std::uint64_t used_bytes = 0;   // counted or resident now
  std::uint64_t peak_bytes = 0;   // counted: most in the last step; resident: most so far
  std::uint64_t limit_bytes = 0;  // this rank's share of the control group or machine; 0 = unknown
};

class MemoryProbe final : public Actuator {
 public:
  static constexpr std::uint64_t kEverySteps = 16;

  // `ranks_on_node`: the ranks that share the memory, this one included.
  explicit MemoryProbe(std::int32_t ranks_on_node = 1);
  ~MemoryProbe() override;
  MemoryProbe(const MemoryProbe&) = delete;
  MemoryProbe& operator=(const MemoryProbe&) = delete;

  const char* name() const override { return "memory"; }
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

  // Reads the memory now.
  void look();
  const MemoryReading& reading() const { return reading_; }

 private:
  void look_at_process();

  int statm_ = -1;  // kept open: a look is one read
  std::uint64_t calls_ = 0;
  MemoryReading reading_;
};

}  // namespace cox::detail
