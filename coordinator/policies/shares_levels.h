// Levels: how fast each rank is on its samples, learnt from one time per sample and report, with
// the noise of such times and two CUSUM tests a rank (cusum.h) for a real change, slower or faster.
// The part of shares_speeds.h that knows nothing of signals. Pure apart from the notes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "coordinator/core/portable_math.h"
#include "coordinator/policies/cusum.h"
#include "coordinator/policies/shares_notes.h"

namespace cox {

// Seconds per sample of one rank, on the scale of the levels.
struct RankTime {
  std::size_t rank = 0;
  double per_sample = 0;
};

// Learns from the times of one round: noise first, then levels.
void learn_levels(SharesNotes& notes, const std::vector<RankTime>& times, double smallest_gain);

// Mean of the newest `count` times of a rank without the smallest and the largest. Requires: 1 <=
// count <= kRecent, that many seen.
double trimmed_mean(SharesNotes& notes, std::size_t rank, std::size_t count);

// Deviation of one time of a rank, and of its level, as a part of it. Requires for the second:
// count() of the rank above 0.
double time_deviation(SharesNotes& notes, std::size_t rank);
double level_deviation(SharesNotes& notes, std::size_t rank);

// Logarithm of a ratio, taken as one between 0.001 and 1,000.
inline double log_ratio(double ratio) {
  return portable_log(std::min(std::max(ratio, 1e-3), 1e3));
}

}  // namespace cox
