// Channel noise: the running level of each rank's excess in one channel, and how much a round
// differs from it. A part of slowness.h. Robust, because a change of a rank's level is not noise,
// and an outlier counts as three deviations at most. Pure; linear in ranks.
//
// Columns by rank and columns by report lie side by side within a run of neighbouring ranks, so
// that loops over both are plain ones.
#pragma once

#include <span>
#include <tuple>
#include <vector>

#include "coordinator/core/units.h"

namespace cox {

inline constexpr double kLevelRounds = 8;  // that a running level remembers

// Columns have one entry per rank.
struct SlownessChannel {
  double pooled_variance = 0;
  double pooled_samples = 0;
  std::vector<double> level;     // running mean of the excess over 8 rounds
  std::vector<double> variance;  // of one round's excess around it
  std::vector<double> sum;       // CUSUM
  std::vector<double> since;     // the round in which `sum` last left 0
  // While noise is larger than the slowdown that is looked for; else without entries.
  std::vector<double> large_sum;    // CUSUM for slowdowns that stand out of that noise
  std::vector<double> slow_rounds;  // of late that stood out, less two for each that did not

  static auto fields(auto& self) {
    return std::tie(self.pooled_variance, self.pooled_samples, self.level, self.variance, self.sum,
                    self.since, self.large_sum, self.slow_rounds);
  }
};

// How fast a rank learns in all channels; follows from the number of its reports, and is the same
// for all that have many.
struct LearningRates {
  double level = 1;     // weight of a round in the running level
  double variance = 0;  // in the variance; 0 = there is no level to compare with yet
  double residual = 1;  // a squared residual is too large by this factor
  friend bool operator==(const LearningRates&, const LearningRates&) = default;
};

// Neighbouring ranks that reported and learn at the same rates. Never so many that what is read of
// them more than once has left the nearest cache meanwhile.
struct RankRun {
  std::size_t rank = 0;    // the first one
  std::size_t report = 0;  // its place among the reports
  std::size_t size = 0;
  LearningRates rates;
};

// Returns the runs of these ranks, which are ascending. `reports` has the number of reports before
// this round of every rank of the world.
std::vector<RankRun> runs_of(std::span<const RankId> ranks, std::span<const double> reports);

// Moves levels, variances and the pool of a channel. Returns the variance that tests of this round
// should use for ordinary ranks: the pool, widened while it rests on few samples, or more when this
// round itself is wilder.
double learn_noise(SlownessChannel& channel, std::span<const RankRun> runs,
                   std::span<const double> excess);

}  // namespace cox
