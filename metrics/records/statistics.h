// Sums that are exactly rounded, medians, percentiles and the local spikes of a series. The
// definitions are those of docs/diagnosis.md. Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cox::diagnosis {

// Adds doubles without rounding until value() rounds once (Shewchuk, "Adaptive precision
// floating-point arithmetic", 1997): the order of the terms does not matter. A term that is not
// finite makes the sum what plain addition makes of it.
class ExactSum {
 public:
  void add(double term);
  double value() const;

 private:
  static constexpr std::size_t kParts = 40;  // doubles have 2098 bits of range, 53 each
  std::array<double, kParts> parts_;         // ascending, not overlapping
  std::size_t size_ = 0;
  double special_ = 0;  // sum of terms that are not finite
};

double exact_sum(std::span<const double> terms);
double mean_of(std::span<const double> values);  // 0 for none

// Returns the middle value, or the mean of the two; 0 for none. Takes a copy that it reorders.
double median_of(std::vector<double> values);

// Linear interpolation at q (n - 1). REQUIRES: sorted; 0 <= q <= 1. 0 for none.
double percentile_of(std::span<const double> sorted, double q);

// Returns 1.4826 times the median distance from the median: the standard deviation of a normal
// distribution, whatever a few outliers are.
double robust_deviation(const std::vector<double>& values);

// Returns the indexes of values that stick out above the last twelve finite ones before them.
// Absent and non-finite values are passed over.
std::vector<std::size_t> local_spikes(std::span<const double> values);

// Returns the medians of the first and of the last tenth. REQUIRES: not empty.
struct EndMedians {
  double first = 0;
  double last = 0;
};
EndMedians end_medians(std::span<const double> values);

}  // namespace cox::diagnosis
