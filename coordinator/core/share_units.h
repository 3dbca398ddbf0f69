// Converts the shares of a plan to units of each rank: micro-batches, or samples of a step. The
// planner, the policies and the pages divide a batch by this rule. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"

namespace cox {

// Returns relative shares in units. Each rank gets its exact part rounded down. Remaining units go
// one by one to the largest remainders, the lower rank first. Empty shares are even.
// SamplePlan::assign uses the same rule. REQUIRES: `shares` is empty or has `ranks` entries, not
// all 0; units <= 2^31.
std::vector<std::uint64_t> units_of_shares(std::uint64_t units,
                                           std::span<const std::uint32_t> shares,
                                           std::size_t ranks);

// Returns the samples of a step under the plan, over all ranks; 0 if the loop decides.
std::uint64_t samples_of_step(const JobFacts& job, const Plan& plan);

// Returns the samples of a step of each rank under the plan. Empty if peaks do not depend on
// samples, because the loop divides the batch itself or works in micro-batches of equal size.
std::vector<std::uint64_t> samples_of_ranks(const JobFacts& job, const Plan& plan);

}  // namespace cox
