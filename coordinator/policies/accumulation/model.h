// The model of policy `accumulation`: what synchronising cost in a round, how the micro-batches of
// a step divide among ranks of unequal speed, and what that makes of the whole batch. Pure; linear
// in ranks.
//
// Synchronising is the least communication time over the ranks that worked: the last one to arrive
// waits for nobody, so what it spends there is the exchange itself, while for all others it is
// mixed with waiting. What is hidden behind the backward pass costs nothing and is not in it. With
// s seconds of that, f of the slowest rank's optimizer and c of each of its micro-batches, the
// anchor that meets the target t is (s (1 - t) / t - f) / c. Scaling the present anchor by overhead
// over target, as is usual, undershoots, because the share falls slower than the anchor grows, and
// takes several changes; this takes one, and each change asks something of the learning rate.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/policy.h"

namespace cox {

// Micro-batches of each rank for each one of the slowest rank; 1 .. 1000, or 0 for a rank without
// work. One entry per rank.
using RankRatios = std::vector<double>;

// Returns ratios by estimated speeds where policy `shares` moves the work to where the speed is (a
// rank of which nothing is known counts as the slowest), else as the shares of the plan are.
RankRatios rank_ratios(const PolicyInput& input);

// Returns ratios as the shares of the plan are; all alike where it has none.
RankRatios ratios_of(const Plan& plan, const JobFacts& job);

// Return the micro-batches of the job's own batch and of a step under `plan`; 0 where the loop has
// no global batch. REQUIRES, here and below: a job with micro-batches.
std::uint64_t job_micro_batches(const JobFacts& job);
std::uint64_t micro_batches_of(const Plan& plan, const JobFacts& job);

// Returns the micro-batches of the slowest rank under the newest plan, which need not be whole.
double present_anchor(const PolicyInput& input, const RankRatios& ratios);

// Returns the micro-batches of a step whose slowest rank computes `anchor`: at least one for each
// rank that works, caps kept, never fewer than the job's own batch has, never more than a plan may
// carry.
std::uint64_t step_micro_batches(std::uint64_t anchor, std::span<const double> ratios,
                                 const JobFacts& job, const SharesConfig& shares);

// What synchronising costs: in one round, or the median of some. Finite and not negative.
struct SyncCost {
  double anchor = 0;        // that would meet the target
  double sync_seconds = 0;  // a step
  double work_seconds = 0;  // a step, of the slowest rank

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.anchor);
    visit(self.sync_seconds);
    visit(self.work_seconds);
  }
};

// Returns the cost in this round; none when it tells nothing about the plan in force: nobody
// worked, it was a round of another plan, or something was done twice in it.
std::optional<SyncCost> sync_cost(const PolicyInput& input);

}  // namespace cox
