// The problem that policy `shares` solves in one round: what each rank would take now and what
// would be best under minima and caps, in units: micro-batches of the job, or samples where it has
// none. Made from estimated speeds, or from speeds that the user named. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/planner/share_assignment.h"

namespace cox {

// The problem of this round in absolute seconds, with the units of now as the present ones.
struct SharesProblem {
  ShareProblem problem;
  std::uint64_t unit_samples = 1;
  double shared_seconds = 0;   // of a step, beside the work of the slowest rank
  SlowestRank slowest;         // with the present units
  bool breaks_limits = false;  // some rank is below its minimum or above its cap now
};

// Makes the problem from estimated speeds; ranks without any, and without samples now, count as the
// median of the others. `caps` are the most samples that fit each rank's memory, 0 where that is
// not known. REQUIRES: samples_of_step() > 0; estimates and caps have an entry per rank; all ranks
// with samples have a speed.
SharesProblem measured_problem(const PolicyInput& input, std::span<const std::uint64_t> caps);

// Makes the problem from config.shares.hint: relative speeds, others 1. Seconds have no scale.
// REQUIRES: samples_of_step() > 0.
SharesProblem hinted_problem(const PolicyInput& input);

// Returns the part of the step's time that `seconds` of the slowest rank would save.
double gain_ratio(const SharesProblem& shares, double seconds);

// Returns the ranks that their caps hold back in `assignment`, where that costs more than `worth`
// of the step.
std::vector<std::size_t> held_ranks(const SharesProblem& shares, const ShareAssignment& assignment,
                                    double worth);

// Returns units as shares of a plan, which has at most 2^20 a rank: larger ones are rounded in
// proportion.
std::vector<std::uint32_t> shares_of(const std::vector<std::uint64_t>& units);

}  // namespace cox
