// BlockEvidence: counts and extremes of one block over one reporting interval, from which policies
// read trouble. Travels as a fixed array beside the signals and is merged element by element on the
// way up, so its size does not grow with the number of ranks. Plain values; merging is associative
// and commutative (ties of a maximum go to the lowest rank), so any order gives the same result,
// the last bits of noise_sum aside: it adds floats, so the way up keeps to a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "coordinator/core/units.h"

namespace cox {

struct BlockEvidence {
  std::uint32_t overflow = 0;   // non-finite values seen
  std::uint32_t underflow = 0;  // values flushed to zero by the format in use
  std::uint32_t sampled = 0;    // values looked at
  RankId rank_of_max{-1};       // who saw `amax`; -1 = nobody
  float amax = 0;               // largest finite magnitude
  float noise_sum = 0;          // gradient noise ratio, summed over reporting ranks
  std::uint32_t noise_count = 0;
  RankId rank_of_overflow{-1};  // lowest rank with overflow > 0; -1 = nobody

  friend bool operator==(const BlockEvidence&, const BlockEvidence&) = default;
};
static_assert(sizeof(BlockEvidence) == 32);
static_assert(std::is_trivially_copyable_v<BlockEvidence>);

BlockEvidence merge(const BlockEvidence& a, const BlockEvidence& b);

inline void merge_into(BlockEvidence& into, const BlockEvidence& from) {
  into = merge(into, from);
}
// Element by element. Requires: equal sizes.
void merge_into(std::span<BlockEvidence> into, std::span<const BlockEvidence> from);

}  // namespace cox
