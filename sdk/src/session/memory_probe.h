// MemoryProbe: how much memory this rank's process uses and may use, read from the kernel at most
// every few steps, because a look costs more than a step may. Training thread only.
#pragma once

#include <cstdint>

namespace cox::detail {

struct MemoryReading {
  std::uint64_t used_bytes = 0;   // resident now
  std::uint64_t peak_bytes = 0;   // largest `used_bytes` seen so far
  std::uint64_t limit_bytes = 0;  // of the control group, else of the machine; 0 = unknown
};

class MemoryProbe {
 public:
  static constexpr std::uint64_t kEverySteps = 16;

  MemoryProbe();
  ~MemoryProbe();
  MemoryProbe(const MemoryProbe&) = delete;
  MemoryProbe& operator=(const MemoryProbe&) = delete;

  // Once a step; looks every kEverySteps-th time.
  void look();
  const MemoryReading& reading() const { return reading_; }

 private:
  int statm_ = -1;  // kept open: a look is one read
  std::uint64_t calls_ = 0;
  MemoryReading reading_;
};

}  // namespace cox::detail
