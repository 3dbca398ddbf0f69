// Noise: how much the slowdowns of ranks scatter while nothing changes, learned from round to round
// inside StragglerMemory. Robust: a change of a rank's level is not noise, and an outlier counts as
// three deviations at most. Pure apart from the memory it is given.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "coordinator/policies/straggler_memory.h"

namespace cox {

// Learns from one round of one channel; excess[i] belongs to ranks[i]. Moves levels, variances and
// the pool. Returns the variance that tests of this round should use for ordinary ranks: the pool,
// widened while it rests on few samples, or more when this round itself is wilder.
double learn_noise(StragglerMemory& memory, std::size_t channel, std::span<const std::size_t> ranks,
                   std::span<const double> excess);

// Rounds that a rank's running level remembers.
inline constexpr double kLevelRounds = 8;

// A rank counts as noisier than the others from this ratio of variances on.
inline constexpr double kNoisyRatio = 2;

}  // namespace cox
