// The ratio of the step times of two stretches of rounds, with an interval. effects.h measures a
// change by this ratio. Pure; only portable arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coordinator/core/fields.h"

namespace cox {

struct RatioInterval {
  double ratio = 0;  // after over before; 0 = not known
  double low = 0;
  double high = 0;

  bool is_known() const { return ratio > 0; }
  static auto fields(auto& self) {
    return message("RatioInterval", field(1, "ratio", self.ratio), field(2, "low", self.low),
                   field(3, "high", self.high));
  }
  friend bool operator==(const RatioInterval&, const RatioInterval&) = default;
};

// The two-sided confidence of an interval.
enum class Confidence : std::uint8_t { percent_95, percent_99, percent_99_9 };

// The fewest rounds that give an interval: of the shorter stretch, and of the longer one.
inline constexpr std::size_t kFewestPairedRounds = 6;
inline constexpr std::size_t kFewestLongRounds = 16;

// Returns the ratio of the typical seconds of `after` to those of `before`; not known if a stretch
// is too short. REQUIRES: all seconds are positive, normal and finite.
//
// Times of steps depend on earlier ones, and their tails are heavy (a pause now and then). Each
// stretch is therefore cut into batches of 8 rounds in a row (4 if one stretch has fewer than 32
// rounds). A batch counts by the median of its logarithms; the ratio is that of the means of the
// batches. The interval is Welch's for two means of unequal variance, by the method of
// non-overlapping batch means (Schmeiser, Operations Research 30, 1982). If neighbouring batches
// resemble each other, the variance is inflated by (1 + r) / (1 - r). Here r is the pooled lag-1
// correlation of the batches, corrected for the bias of short series, between 0 and 0.6. A stretch
// of 6 to 15 rounds counts by its median and borrows the noise of the other one. docs/decisions.md
// has the coverage in simulations.
RatioInterval paired_ratio(std::span<const double> before, std::span<const double> after,
                           Confidence confidence);

// Returns the deviation of one value around its neighbours, as a ratio of the value. Uses the
// median of the differences of successive logarithms, which neither a drift nor a pause moves.
// Returns 0 for fewer than 8 values. REQUIRES: as paired_ratio().
double noise_of_series(std::span<const double> seconds);

}  // namespace cox
