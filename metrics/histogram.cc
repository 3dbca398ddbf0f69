#include "metrics/histogram.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace cox::metrics {

void BucketCounts::observe(double value, std::uint64_t times) {
  if (!(value >= 0 && value <= std::numeric_limits<double>::max())) {
    ++refused_;
    return;
  }
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

std::uint64_t BucketCounts::cumulative(std::size_t index) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= index; ++i) total += counts_[i];
  return total;
}

}  // namespace cox::metrics
