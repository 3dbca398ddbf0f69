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
// passes cheaper than std::nth_element when there are thousands. Requires: k < values.size(), all
// finite.
Neighbours select(std::span<const double> values, std::size_t k);

// The median (mean of the two in the middle for an even count). Requires: not empty, all finite.
double median_of(std::span<const double> values);

}  // namespace cox
