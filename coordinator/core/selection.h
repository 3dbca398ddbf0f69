// Order statistics of many values without sorting them. Pure.
#pragma once

#include <cstddef>
#include <span>

namespace cox {

// Two neighbours in sorted order.
struct Neighbours {
  double lower = 0;
  double upper = 0;  // equal to lower if there is no higher one
};

// Returns the k-th smallest value and the next one, with k counted from 0. Linear in the number of
// values, and a few passes cheaper than std::nth_element for thousands. REQUIRES: k is below
// values.size(), and all values are finite.
Neighbours select(std::span<const double> values, std::size_t k);

struct TwoSelected {
  Neighbours first;
  Neighbours second;
};

// Selects twice for little more than the cost of once. REQUIRES: first <= second < values.size(),
// and all values are finite.
TwoSelected select_two(std::span<const double> values, std::size_t first, std::size_t second);

// Returns the median; of an even count the mean of the two in the middle. REQUIRES: `values` is not
// empty and all are finite.
double median_of(std::span<const double> values);

struct MedianAndTail {
  double median = 0;
  double p95 = 0;
};

// Returns the median, and the quantile 0.95 with linear interpolation at 0.95 (n - 1). REQUIRES:
// `values` is not empty and all are finite.
MedianAndTail median_and_tail_of(std::span<const double> values);

struct Extremes {
  double min = 0;
  double max = 0;
};

// Returns the smallest and the largest value. REQUIRES: `values` is not empty and all are finite.
Extremes extremes_of(std::span<const double> values);

}  // namespace cox
