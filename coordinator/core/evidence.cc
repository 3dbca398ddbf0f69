#include "coordinator/core/evidence.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace cox {
namespace {

std::uint32_t add_saturating(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t sum = a + b;
  return sum < a ? std::numeric_limits<std::uint32_t>::max() : sum;
}

// The lower of two ranks of which -1 means nobody.
RankId lower_rank(RankId a, RankId b) {
  if (a.value() < 0) return b;
  if (b.value() < 0) return a;
  return std::min(a, b);
}

// A magnitude that somebody saw; anything else (nobody's, or not finite) loses against all.
float magnitude_seen(const BlockEvidence& e) {
  return e.rank_of_max.value() >= 0 && std::isfinite(e.amax) ? e.amax : -1.0f;
}

}  // namespace

BlockEvidence merge(const BlockEvidence& a, const BlockEvidence& b) {
  BlockEvidence merged;
  merged.overflow = add_saturating(a.overflow, b.overflow);
  merged.underflow = add_saturating(a.underflow, b.underflow);
  merged.sampled = add_saturating(a.sampled, b.sampled);
  merged.noise_sum = a.noise_sum + b.noise_sum;
  merged.noise_count = add_saturating(a.noise_count, b.noise_count);
  merged.rank_of_overflow = lower_rank(a.rank_of_overflow, b.rank_of_overflow);
  const float seen_a = magnitude_seen(a);
  const float seen_b = magnitude_seen(b);
  const float largest = std::max(seen_a, seen_b);
  if (largest >= 0) {
    merged.amax = largest;
    merged.rank_of_max = lower_rank(seen_a == largest ? a.rank_of_max : RankId(-1),
                                    seen_b == largest ? b.rank_of_max : RankId(-1));
  }
  return merged;
}

void merge_into(std::span<BlockEvidence> into, std::span<const BlockEvidence> from) {
  assert(into.size() == from.size());
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = merge(into[i], from[i]);
}

}  // namespace cox
