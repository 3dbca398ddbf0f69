// Share assignment: how many units of a step's batch (micro-batches or samples) each rank takes, so
// that the last rank to finish does so as early as possible: the exact minimum over all whole
// assignments of max over ranks of fixed_seconds + seconds_per_unit * units. Std only, pure, no
// communication. Only additions, multiplications, divisions and comparisons, so the same bits come
// out everywhere. A pass is linear in ranks; passes narrow an interval of times, by the speed of
// all ranks or by halves, until at most two units a rank end within it; of these the soonest are
// selected. Nearly always three or four passes, and 80 at most.
//
// Among assignments with the least time, assign_shares() chooses the one that moves the fewest
// units away from the `present` assignment, and among these the one in which every further unit
// goes to the rank that finishes it soonest, the lower rank on ties.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "coordinator/core/share_units.h"
#include "coordinator/core/status.h"

namespace cox {

inline constexpr std::uint64_t kNoUnitCap = std::numeric_limits<std::uint64_t>::max();

// RankCost says what a step costs a rank and how many units it may take. REQUIRES: seconds are
// finite and not negative.
struct RankCost {
  double fixed_seconds = 0;  // of a step, whatever the units
  double seconds_per_unit = 0;
  std::uint64_t min_units = 0;
  std::uint64_t max_units = kNoUnitCap;
};

struct ShareProblem {
  std::uint64_t units = 0;  // of all ranks in a step: 1 to 2^31
  std::vector<RankCost> ranks;
  std::vector<std::uint64_t> present;  // units of each rank now; empty = no matter
};

struct ShareAssignment {
  std::vector<std::uint64_t> units;  // one per rank; their sum is that of the problem
  double seconds = 0;                // of the slowest rank
};

// Returns the assignment described above. Errors: failed_precondition naming ranks and numbers
// where minima or caps leave no way to place the units; invalid_argument for numbers out of range.
Result<ShareAssignment> assign_shares(const ShareProblem& problem);

// Returns an assignment with the same time for half the work, regardless of how many units move.
// Errors: as assign_shares().
Result<ShareAssignment> fastest_shares(const ShareProblem& problem);

// Returns whether some assignment may end by that time; one pass, where the best takes several.
// False is certain: fastest_shares() takes longer. Errors: as assign_shares().
Result<bool> may_end_by(const ShareProblem& problem, double seconds);

// Returns the time of one rank with that many units. It never falls as units grow.
inline double seconds_of(const RankCost& rank, std::uint64_t units) {
  return rank.fixed_seconds + rank.seconds_per_unit * static_cast<double>(units);
}

// Returns a lower bound on the seconds of any assignment: the optimum without whole units, minima
// and caps. Infinite or NaN when some rank takes no time for a unit.
double least_seconds(std::span<const RankCost> ranks, std::uint64_t units);

// SlowestRank is the slowest rank under an assignment (the lowest one on ties), and its time.
// REQUIRES: both spans have one entry per rank, and there is a rank.
struct SlowestRank {
  std::size_t rank = 0;
  double seconds = 0;
};
SlowestRank slowest_rank(std::span<const RankCost> ranks, std::span<const std::uint64_t> units);

}  // namespace cox
