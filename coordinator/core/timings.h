// Timings: the seconds per covered round of the ranks that worked in this round, column by column,
// so that statistics and detectors run over plain arrays. A rank that has finished, covers no round
// or reports a time that is negative or not finite is left out. Pure values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/summary.h"

namespace cox {

struct Timings {
  std::vector<RankId> ranks;                        // ascending
  std::array<std::vector<double>, kPhases> phases;  // phases[p][i] belongs to ranks[i]
  std::vector<double> own;                          // sum over is_own_work phases
  std::vector<double> wall;
  std::vector<double> samples;        // per covered round; 0 where the rank counts none
  std::vector<std::uint32_t> report;  // the place of the rank's report in `reports`
};

// Requires: reports in ascending ranks.
Timings timings_of(std::span<const RankSignal> reports);

// The spread of values that belong to `ranks`; linear in their number. Requires: equal sizes,
// finite values, ascending ranks.
Spread spread_of(std::span<const double> values, std::span<const RankId> ranks);

}  // namespace cox
