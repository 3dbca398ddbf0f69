#include "metrics/histogram.h"

#include <algorithm>
#include <cmath>

namespace cox::metrics {

void BucketCounts::observe(double value, std::uint64_t times) {
  if (!std::isfinite(value) || value < 0) {
    ++refused_;
    return;
  }
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  if (bound != bounds_.end()) counts_[static_cast<std::size_t>(bound - bounds_.begin())] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

std::uint64_t BucketCounts::cumulative(std::size_t index) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= index; ++i) total += counts_[i];
  return total;
}

}  // namespace cox::metrics
