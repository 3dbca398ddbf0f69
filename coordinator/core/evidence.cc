#include "coordinator/core/evidence.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace cox {
namespace {

// Returns the lower of two ranks; -1 means none.
RankId lower_rank(RankId a, RankId b) {
  if (a.value() < 0) return b;
  if (b.value() < 0) return a;
  return std::min(a, b);
}

// An unobserved or non-finite magnitude loses against all others.
float size_of(const Magnitude& m) {
  return m.rank.value() >= 0 && std::isfinite(m.value) ? m.value : -1.0f;
}

Magnitude larger(const Magnitude& a, const Magnitude& b) {
  const float size_a = size_of(a);
  const float size_b = size_of(b);
  if (size_a < 0 && size_b < 0) return {};
  if (size_a == size_b) return {a.value, lower_rank(a.rank, b.rank)};
  return size_a > size_b ? a : b;
}

double part_of(std::uint32_t part, std::uint32_t whole) {
  return whole > 0 ? static_cast<double>(part) / whole : 0;
}

constexpr double kLeastNoise = 1e-9;  // a gradient without noise still has a finite signal ratio

std::optional<double> mean_noise(const BlockEvidence& seen) {
  if (seen.noise_count == 0 || !std::isfinite(seen.noise_sum)) return std::nullopt;
  return static_cast<double>(seen.noise_sum) / seen.noise_count;
}

}  // namespace

BlockEvidence merge(const BlockEvidence& a, const BlockEvidence& b) {
  BlockEvidence merged;
  merged.overflow_forward = add_saturating(a.overflow_forward, b.overflow_forward);
  merged.overflow_backward = add_saturating(a.overflow_backward, b.overflow_backward);
  merged.rank_of_overflow = lower_rank(a.rank_of_overflow, b.rank_of_overflow);
  merged.sampled = add_saturating(a.sampled, b.sampled);
  merged.underflow = add_saturating(a.underflow, b.underflow);
  merged.saturated = add_saturating(a.saturated, b.saturated);
  merged.activation = larger(a.activation, b.activation);
  merged.gradient = larger(a.gradient, b.gradient);
  merged.noise_sum = a.noise_sum + b.noise_sum;
  merged.noise_count = add_saturating(a.noise_count, b.noise_count);
  merged.underflow_ratio = larger(a.underflow_ratio, b.underflow_ratio);
  merged.saturated_ratio = larger(a.saturated_ratio, b.saturated_ratio);
  merged.signal_over_noise = larger(a.signal_over_noise, b.signal_over_noise);
  return merged;
}

BlockEvidence with_own_ratios(BlockEvidence seen, RankId rank) {
  if (seen.sampled > 0) {
    seen.underflow_ratio = {static_cast<float>(part_of(seen.underflow, seen.sampled)), rank};
    seen.saturated_ratio = {static_cast<float>(part_of(seen.saturated, seen.sampled)), rank};
  }
  if (const auto noise = mean_noise(seen)) {
    seen.signal_over_noise = {static_cast<float>(1 / std::max(*noise, kLeastNoise)), rank};
  }
  return seen;
}

double worst_underflow_ratio(const BlockEvidence& seen) {
  const double told = size_of(seen.underflow_ratio);
  return told >= 0 ? told : part_of(seen.underflow, seen.sampled);
}

double worst_saturated_ratio(const BlockEvidence& seen) {
  const double told = size_of(seen.saturated_ratio);
  return told >= 0 ? told : part_of(seen.saturated, seen.sampled);
}

std::optional<double> least_noise_ratio(const BlockEvidence& seen) {
  const double told = size_of(seen.signal_over_noise);
  return told > 0 ? 1 / told : mean_noise(seen);
}

void merge_into(std::span<BlockEvidence> into, std::span<const BlockEvidence> from) {
  assert(into.size() == from.size());
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = merge(into[i], from[i]);
}

}  // namespace cox
