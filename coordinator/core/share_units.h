// Turns the shares of a plan into units of each rank: micro-batches, or samples of a step. The
// planner, the policies and the pages divide a batch by this one rule. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"

namespace cox {

// Returns relative shares in units. Each rank gets its exact part rounded down; the rest go one by
// one to the largest remainders, the lower rank first. Empty shares are even ones.
// SamplePlan::assign uses the same rule. REQUIRES: shares empty or of `ranks` entries, not all 0;
// units <= 2^31.
std::vector<std::uint64_t> units_of_shares(std::uint64_t units,
                                           std::span<const std::uint32_t> shares,
                                           std::size_t ranks);

// Returns the samples of a step under the plan, of all ranks; 0 where the loop decides that itself.
std::uint64_t samples_of_step(const JobFacts& job, const Plan& plan);

// Returns the samples of a step of each rank under the plan; empty where peaks do not depend on
// them: the loop divides the batch itself, or works in micro-batches of equal size.
std::vector<std::uint64_t> samples_of_ranks(const JobFacts& job, const Plan& plan);

}  // namespace cox
