#include "metrics/histogram.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace cox::metrics {

BucketCounts::BucketCounts(std::span<const double> bounds) : bounds_(bounds) {
  limits_.fill(std::numeric_limits<double>::infinity());
  std::ranges::copy(bounds, limits_.begin());
}

void BucketCounts::observe(double value, std::uint64_t times) {
  if (!(value >= 0 && value <= std::numeric_limits<double>::max())) {
    ++refused_;
    return;
  }
  // Halves what is left; by factors, because a branch would be guessed wrong half of the time.
  static_assert(kMaxBuckets == 16);
  std::size_t below = 0;
  for (const std::size_t half : {8, 4, 2, 1})
    below += half * static_cast<std::size_t>(limits_[below + half - 1] < value);
  below += static_cast<std::size_t>(limits_[below] < value);
  counts_[below] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

std::uint64_t BucketCounts::cumulative(std::size_t index) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= index; ++i) total += counts_[i];
  return total;
}

}  // namespace cox::metrics
