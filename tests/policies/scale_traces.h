// Adversarial traces of gradient magnitudes for rules of loss scaling. For each rank and step: the
// largest gradient before scaling, and the distance to the smallest one that matters. Seeded; drawn
// step by step.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "coordinator/testing/random.h"

namespace cox::test {

inline constexpr std::size_t kTraceRanks = 4;

enum class TraceKind : std::uint8_t {
  calm = 0,
  bursts = 1,          // a few bits to over a thousandfold, for 1 to 200 steps
  periodic = 2,        // spikes of one step, every 20 to 900 steps
  bad_rank = 3,        // bursts and infinities on one rank only
  infinite_while = 4,  // 1 to 300 non-finite steps in a row
  infinite_forever = 5,
  underflow_drift = 6,  // gradients vanish over time
  overflow_drift = 7,   // ... or grow
  heavy_tails = 8,
};
inline constexpr std::size_t kTraceKinds = 9;
std::string_view to_string(TraceKind kind);

// The gradients of one rank in one step; logarithms to base 2.
struct TraceGradient {
  float largest = 0;      // largest gradient
  float spread = 0;       // bits from the largest gradient to the smallest that matters
  bool infinite = false;  // no scale can save the step
};
using TraceStep = std::array<TraceGradient, kTraceRanks>;

class ScaleTrace {
 public:
  ScaleTrace(TraceKind kind, std::uint64_t seed);

  // Returns the number of steps until the trouble ends; the largest number if it never ends.
  std::uint64_t trouble_ends() const { return trouble_ends_; }
  std::uint64_t steps() const { return steps_; }
  TraceStep next();

 private:
  void plan_trouble();
  float wiggle();

  TraceKind kind_;
  testing::Random random_;
  std::uint64_t step_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t trouble_ends_ = 0;
  float base_ = 0;
  float noise_ = 0;
  float drift_ = 0;  // bits a step
  std::uint64_t period_ = 0;
  std::uint64_t from_ = 0;  // the current or next burst
  std::uint64_t until_ = 0;
  float height_ = 0;
  bool burst_is_infinite_ = false;
  std::size_t rank_ = 0;  // the bad rank
};

}  // namespace cox::test
