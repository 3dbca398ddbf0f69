// Noise: how much the slowdowns of ranks scatter while nothing changes, learned from round to round
// inside StragglerMemory. Robust: a change of a rank's level is not noise, and an outlier counts as
// three deviations at most. Pure apart from the memory it is given.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "coordinator/policies/rank_runs.h"
#include "coordinator/policies/straggler_memory.h"

namespace cox {

// What the number of a rank's reports means for this round; the same in all channels, so that only
// one of them pays for the divisions. [i] belongs to report i.
struct LearningRates {
  std::vector<double> level;     // weight of this round in the running level
  std::vector<double> variance;  // in the variance; 0 = there is no level to compare with yet
  std::vector<double> residual;  // a squared residual is too large by this factor
  double known = 0;              // ranks that have a level
};
LearningRates learning_rates(StragglerMemory& memory, std::span<const RankRun> runs);

// Learns from one round of one channel; excess[i] belongs to report i. Moves levels, variances and
// the pool. Returns the variance that tests of this round should use for ordinary ranks: the pool,
// widened while it rests on few samples, or more when this round itself is wilder.
double learn_noise(StragglerMemory& memory, std::size_t channel, std::span<const RankRun> runs,
                   const LearningRates& rates, std::span<const double> excess);

// Rounds that a rank's running level remembers.
inline constexpr double kLevelRounds = 8;

// A rank counts as noisier than the others from this ratio of variances on.
inline constexpr double kNoisyRatio = 2;

}  // namespace cox
