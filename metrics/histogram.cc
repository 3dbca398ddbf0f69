#include "metrics/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cox::metrics {

BucketCounts::BucketCounts(std::span<const double> bounds) : bounds_(bounds) {
  limits_.fill(std::numeric_limits<double>::infinity());
  std::ranges::copy(bounds, limits_.begin());
}

void BucketCounts::observe(double value, std::uint64_t times) {
  if (!std::isfinite(value) || value < 0) {
    ++refused_;
    return;
  }
  std::uint64_t below = 0;  // all are compared: quicker than branches that are guessed wrong
  for (const double limit : limits_) below += limit < value ? 1u : 0u;
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
