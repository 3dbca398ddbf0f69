// Sums that are exactly rounded, medians, percentiles and the local spikes of a series. The
// definitions are those of docs/diagnosis.md. Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cox::diagnosis {

// Adds doubles without rounding; value() rounds once (Shewchuk, "Adaptive precision floating-point
// arithmetic", 1997). The order of the terms does not matter. Terms that are not finite add up as
// in plain addition.
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

// Returns the middle value, or the mean of the two middle values; 0 for none. Reorders its copy.
double median_of(std::vector<double> values);

// Interpolates linearly at q (n - 1); 0 for none. REQUIRES: sorted; 0 <= q <= 1.
double percentile_of(std::span<const double> sorted, double q);

// Returns 1.4826 times the median distance from the median: a robust estimate of a normal
// distribution's standard deviation.
double robust_deviation(const std::vector<double>& values);

// Returns the indexes of values far above the last twelve finite values before them. Skips absent
// and non-finite values.
std::vector<std::size_t> local_spikes(std::span<const double> values);

// Returns the medians of the first and of the last tenth. REQUIRES: not empty.
struct EndMedians {
  double first = 0;
  double last = 0;
};
EndMedians end_medians(std::span<const double> values);

}  // namespace cox::diagnosis
