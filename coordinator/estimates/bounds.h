// Bounds that several estimates share: of the variances they learn, and of the numbers that they
// read from a saved state, which is a file and may hold anything. Values; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace cox {

inline constexpr double kLeastVariance = 1e-12;  // for clocks that repeat exactly
inline constexpr double kSquareCut = 9;  // squared residuals count as those of 3 deviations at most
inline constexpr double k95 = 1.96;      // deviations: half of an interval of 95 %
inline constexpr double kLargestEstimate = 1e18;

inline bool is_amount(double value) {
  return value >= 0 && value <= kLargestEstimate;
}

inline bool is_ratio(double value) {
  return value > 0 && value <= kLargestEstimate;
}

inline bool is_bounded(double value) {
  return std::fabs(value) <= kLargestEstimate;
}

inline bool are_bounded(std::span<const double> values) {
  return std::ranges::all_of(values, [](double value) { return is_bounded(value); });
}

}  // namespace cox
