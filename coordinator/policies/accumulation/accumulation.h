// Accumulation: how many micro-batches a step has, so that synchronising stays under a part of its
// time. The slowest rank computes `anchor` of them and the others as many as their shares give
// them; gradients are reduced once and weighted by samples, so they stay those of the whole batch.
// Off unless asked for, because it changes the batch. It sets the batch only; who computes how much
// of it is the business of policy `shares`, or even.
//
// The decision rests on the median of what synchronising cost (accumulation.cc) over the rounds
// since the plan last changed, settle_rounds at least, 32 at most, so a pause of some steps does
// not count. It raises the anchor when 5 % more than the present one is needed, by 5 % too much,
// and lowers it when half would do; between the two, and so under any noise of a few percent,
// nothing changes. A step is never smaller than the job's own.
#pragma once

#include <cstdint>
#include <span>

#include "coordinator/decide/policy.h"

namespace cox {

class AccumulationPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::accumulation; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

// Returns the micro-batches of a step whose slowest rank computes `anchor`: at least one for each
// rank that works, caps kept, never fewer than the job's own batch has, never more than a plan may
// carry. `ratios`: micro-batches of each rank for each one of the slowest rank, 0 for a rank
// without work. REQUIRES: a job with micro-batches.
std::uint64_t step_micro_batches(std::uint64_t anchor, std::span<const double> ratios,
                                 const JobFacts& job, const SharesConfig& shares);

}  // namespace cox
