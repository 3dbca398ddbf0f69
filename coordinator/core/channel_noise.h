// Channel noise: the running level of each rank's excess in one channel, and how much a round
// differs from it. A part of slowness.h. Robust, because a change of a rank's level is not noise,
// and an outlier counts as three deviations at most. Pure; linear in ranks.
//
// Columns by rank and columns by report lie side by side within a run of neighbouring ranks, so
// that loops over both are plain ones; when all ranks report there is one run.
#pragma once

#include <span>
#include <tuple>
#include <vector>

#include "coordinator/core/columns.h"
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

struct RankRun {
  std::size_t rank = 0;    // the first one
  std::size_t report = 0;  // its place among the reports
  std::size_t size = 0;
};

// Returns the runs of these ranks, which are ascending.
std::vector<RankRun> runs_of(std::span<const RankId> ranks);

// These rates follow from the number of a rank's reports; they are the same in all channels, so
// that only one of them pays for the divisions. [i] belongs to report i.
struct LearningRates {
  // Weight of this round in the running level.
  std::span<const double> level() const { return columns[0]; }
  // In the variance; 0 = there is no level to compare with yet.
  std::span<const double> variance() const { return columns[1]; }
  // A squared residual is too large by this factor.
  std::span<const double> residual() const { return columns[2]; }

  Columns<3> columns;
  double known = 0;  // ranks that have a level
};

// `all_reports` has an entry per rank. REQUIRES: `runs` is not empty.
LearningRates learning_rates(std::span<const double> all_reports, std::span<const RankRun> runs);

// Moves levels, variances and the pool of a channel. Returns the variance that tests of this round
// should use for ordinary ranks: the pool, widened while it rests on few samples, or more when this
// round itself is wilder. `squares` is room for one number per report.
double learn_noise(SlownessChannel& channel, std::span<const RankRun> runs,
                   const LearningRates& rates, std::span<const double> excess,
                   std::span<double> squares);

}  // namespace cox
