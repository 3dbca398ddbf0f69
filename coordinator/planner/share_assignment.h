// Share assignment: the units of a step's batch (micro-batches or samples) per rank, so that the
// last rank finishes as early as possible. The result is the exact minimum over all whole
// assignments of max over ranks of fixed_seconds + seconds_per_unit * units. Used by the policies
// `shares` and `memory`. Std only, pure, no communication; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "coordinator/core/share_units.h"
#include "coordinator/core/status.h"

namespace cox {

inline constexpr std::uint64_t kNoUnitCap = std::numeric_limits<std::uint64_t>::max();

// RankCost is the cost of a step for a rank, and the rank's limits. REQUIRES: seconds are finite
// and not negative.
struct RankCost {
  double fixed_seconds = 0;  // per step, for any number of units
  double seconds_per_unit = 0;
  std::uint64_t min_units = 0;
  std::uint64_t max_units = kNoUnitCap;
};

struct ShareProblem {
  std::uint64_t units = 0;  // sum over ranks in a step, 1 to 2^31
  std::vector<RankCost> ranks;
  std::vector<std::uint64_t> present;  // current units of each rank; empty = moves do not matter
};

struct ShareAssignment {
  std::vector<std::uint64_t> units;  // one entry per rank; the sum is the problem's units
  double seconds = 0;                // time of the slowest rank
};

// Returns an assignment of the least time. Among those, moves the fewest units away from `present`.
// Further ties give every further unit to the rank that finishes the unit soonest, the lower rank
// first. Errors: failed_precondition with ranks and numbers if minima or caps leave no valid
// assignment; invalid_argument for numbers out of range.
Result<ShareAssignment> assign_shares(const ShareProblem& problem);

// Returns an assignment of the same time for half the work. Ignores `present`. Errors: as
// assign_shares().
Result<ShareAssignment> fastest_shares(const ShareProblem& problem);

// Returns whether some assignment may end by `seconds`. Makes one pass; the best assignment takes
// several. False is certain: fastest_shares() takes longer. Errors: as assign_shares().
Result<bool> may_end_by(const ShareProblem& problem, double seconds);

// Returns the time of one rank with the given units. Never falls as units grow.
inline double seconds_of(const RankCost& rank, std::uint64_t units) {
  return rank.fixed_seconds + rank.seconds_per_unit * static_cast<double>(units);
}

// Returns a lower bound on the seconds of any assignment: the optimum without whole units, minima
// and caps. Infinite or NaN if some rank takes no time for a unit.
double least_seconds(std::span<const RankCost> ranks, std::uint64_t units);

// SlowestRank is the slowest rank under an assignment (the lowest one on ties), and its time.
// REQUIRES: both spans have one entry per rank, and there is a rank.
struct SlowestRank {
  std::size_t rank = 0;
  double seconds = 0;
};
SlowestRank slowest_rank(std::span<const RankCost> ranks, std::span<const std::uint64_t> units);

}  // namespace cox
