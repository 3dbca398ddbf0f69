// Order statistics of many values without sorting them. Pure.
#pragma once

#include <cstddef>
#include <span>

namespace cox {

// Two neighbours in sorted order.
struct Neighbours {
  double lower = 0;
  double upper = 0;  // equal to lower when there is no higher one
};

// The k-th and the next smallest value, k counted from 0. Linear in the number of values, and a few
// passes cheaper than std::nth_element when there are thousands. REQUIRES: k < values.size(), all
// finite.
Neighbours select(std::span<const double> values, std::size_t k);

// Two such pairs for little more than the price of one. REQUIRES: as above, first <= second.
struct TwoSelected {
  Neighbours first;
  Neighbours second;
};
TwoSelected select_two(std::span<const double> values, std::size_t first, std::size_t second);

// The median (mean of the two in the middle for an even count). REQUIRES: not empty, all finite.
double median_of(std::span<const double> values);

// Median, and quantile 0.95 with linear interpolation at 0.95 (n - 1). REQUIRES: as above.
struct MedianAndTail {
  double median = 0;
  double p95 = 0;
};
MedianAndTail median_and_tail_of(std::span<const double> values);

// Smallest and largest. REQUIRES: as above.
struct Extremes {
  double min = 0;
  double max = 0;
};
Extremes extremes_of(std::span<const double> values);

}  // namespace cox
