// BlockEvidence: counts and extremes of one block over one reporting interval, from which policies
// detect trouble. Travels as a fixed array beside the signals, merged element by element on the way
// up, so the size does not grow with the number of ranks. Plain values. Merging is associative and
// commutative (ties of a maximum go to the lowest rank), so any order gives the same result. Only
// the last bits of noise_sum, a sum of floats, depend on the order, so the way up keeps a fixed
// order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "coordinator/core/units.h"

namespace cox {

// Magnitude is a largest finite value and the rank that reported the value.
struct Magnitude {
  float value = 0;
  RankId rank{-1};  // -1 = not observed
  friend bool operator==(const Magnitude&, const Magnitude&) = default;
};

// A rank counts non-finite values for the one block in which they arose: the first in execution
// order with finite inputs and a non-finite result. Blocks that passed such values on are never
// blamed.
struct BlockEvidence {
  std::uint32_t overflow_forward = 0;   // non-finite values that arose in the block's forward pass
  std::uint32_t overflow_backward = 0;  // ... in its backward pass
  RankId rank_of_overflow{-1};          // lowest rank with either; -1 = none
  std::uint32_t sampled = 0;    // values sampled in the format in use (forward and backward)
  std::uint32_t underflow = 0;  // sampled values flushed to zero (fp16: or subnormal)
  std::uint32_t saturated = 0;  // sampled values clipped by FP8
  Magnitude activation{};       // of the block's results
  Magnitude gradient{};         // of the gradients at the block's boundary, without the loss scale
  float noise_sum = 0;          // noise over signal of sampled gradients, summed over ranks
  std::uint32_t noise_count = 0;
  // The worst single rank's ratios, which sums over many ranks would hide; see with_own_ratios().
  Magnitude underflow_ratio{};
  Magnitude saturated_ratio{};
  Magnitude signal_over_noise{};

  bool has_overflow() const { return overflow_forward > 0 || overflow_backward > 0; }
  friend bool operator==(const BlockEvidence&, const BlockEvidence&) = default;
};
static_assert(sizeof(BlockEvidence) == 72);
static_assert(std::is_trivially_copyable_v<BlockEvidence>);

// Returns the evidence of both intervals or ranks together.
BlockEvidence merge(const BlockEvidence& a, const BlockEvidence& b);

// Returns one rank's evidence with the ratios of its own counts filled in. The last step before the
// evidence leaves its rank.
BlockEvidence with_own_ratios(BlockEvidence seen, RankId rank);

// Return the ratio of the worst rank, or the ratio of the sums if no rank reported its own ratio.
// Return 0 if no value was sampled.
double worst_underflow_ratio(const BlockEvidence& seen);
double worst_saturated_ratio(const BlockEvidence& seen);
// Returns the least noise over signal of any rank's gradients; nothing if none was sampled.
std::optional<double> least_noise_ratio(const BlockEvidence& seen);

inline void merge_into(BlockEvidence& into, const BlockEvidence& from) {
  into = merge(into, from);
}
// Merges element by element. REQUIRES: `into` and `from` have equal sizes.
void merge_into(std::span<BlockEvidence> into, std::span<const BlockEvidence> from);

}  // namespace cox
