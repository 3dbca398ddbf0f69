// Accumulation: chooses the number of micro-batches in a step, so that synchronising stays below a
// ratio of the step's time. Off by default, because the policy changes the batch. The slowest rank
// computes `anchor` micro-batches; the other ranks compute as many as their shares give. Policy
// `shares`, if on, divides the batch; otherwise the division is even. Gradients are reduced once
// and weighted by samples, so the result is the gradient of the whole batch.
#pragma once

#include <cstdint>
#include <span>

#include "coordinator/decide/policy.h"

namespace cox {

// The decision uses the median cost of synchronising (accumulation.cc) over the rounds since the
// plan last changed: at least settle_rounds, at most 32. A pause of a few steps does not count. The
// policy raises the anchor when 5 % more than the present one is needed, and then by 5 % more than
// needed. The policy lowers the anchor when half would do. A step is never smaller than the job's
// own.
class AccumulationPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::accumulation; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

// Returns the micro-batches of a step whose slowest rank computes `anchor`. Every rank that works
// gets at least one, and caps are kept. The result is at least the job's own batch and at most the
// largest batch of a plan. `ratios`: micro-batches of each rank for each micro-batch of the slowest
// rank, 0 for a rank without work. REQUIRES: a job with micro-batches.
std::uint64_t step_micro_batches(std::uint64_t anchor, std::span<const double> ratios,
                                 const JobFacts& job, const SharesConfig& shares);

}  // namespace cox
