// Batches of policy `accumulation`: how the micro-batches of a step divide among ranks of unequal
// speed, and what that makes of the whole batch. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/parallel_config.h"
#include "coordinator/core/plan.h"

namespace cox {

// Micro-batches of each rank for each one of the slowest rank; 1 .. 1000, or 0 for a rank without
// work. One entry per rank.
using RankRatios = std::vector<double>;

// All alike, or as the shares of the plan are.
RankRatios ratios_of(const Plan& plan, const JobFacts& job);

// From seconds of work and samples of each rank, optimizer aside; a rank of which nothing is known
// counts as the slowest. Requires: one entry per rank in both.
RankRatios ratios_of(std::span<const double> work_seconds, std::span<const double> samples);

// Micro-batches of the job's own batch; 0 where the loop has no global batch.
std::uint64_t job_micro_batches(const JobFacts& job);

// Micro-batches of a step under `plan`, likewise.
std::uint64_t micro_batches_of(const Plan& plan, const JobFacts& job);

// Micro-batches of a step whose slowest rank computes `anchor`: at least one for each rank that
// works, caps kept, never fewer than the job's own batch has, never more than a plan may carry.
std::uint64_t step_micro_batches(std::uint64_t anchor, std::span<const double> ratios,
                                 const JobFacts& job, const SharesConfig& shares);

}  // namespace cox
