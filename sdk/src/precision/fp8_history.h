// AmaxHistory: from which largest magnitude one operand of one product is scaled when scaling is
// delayed, and by how many bits less because it was too little. A step in which values were clipped
// costs one bit more (8 at most); 64 steps without give one back. Standard library only; the owner
// guards it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/precision/float_codec.h"

namespace cox::detail {

// 2^e, the largest that leaves `margin` bits free: amax * 2^e * 2^margin <= largest_finite(format).
// 1 where amax is 0. Its inverse is a float too.
float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin);

class AmaxHistory {
 public:
  static constexpr std::uint32_t kMostExtra = 8;  // bits
  static constexpr std::uint32_t kStepsToForgive = 64;

  explicit AmaxHistory(std::uint32_t steps) : amax_(steps, 0.0f) {}

  void see(const QuantizeCounts& counts);
  // Takes what was seen since the last call as one step; nothing seen, nothing changes.
  void end_step();
  // Forgets what was seen since then.
  void drop_step() { step_ = {}; }

  bool is_empty() const { return filled_ == 0; }
  float amax() const;  // largest of the steps kept
  std::uint32_t extra_margin() const { return extra_; }

  // Without the step that is under way. read() takes its numbers from the front of `state`.
  void append_to(std::vector<double>& state) const;
  Status read(std::span<const double>& state);

 private:
  std::vector<float> amax_;  // a ring
  std::uint32_t next_ = 0;
  std::uint32_t filled_ = 0;
  std::uint32_t extra_ = 0;
  std::uint32_t clean_steps_ = 0;
  QuantizeCounts step_;
};

}  // namespace cox::detail
