#include "metrics/histogram.h"

#include <cmath>

namespace cox::metrics {

void BucketCounts::observe(double value, std::uint64_t times) {
  if (!std::isfinite(value) || value < 0) {
    ++refused_;
    return;
  }
  std::size_t below = 0;  // all are compared: quicker than a search whose branches are guessed wrong
  for (const double bound : bounds_) below += bound < value ? 1u : 0u;
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
