// Accumulation: how many micro-batches a step has, so that synchronising stays under a part of its
// time. The slowest rank computes `anchor` of them and the others as many as their shares give
// them; gradients are reduced once and weighted by samples, so they stay those of the whole batch.
// Off unless asked for, because it changes the batch. It sets the batch only; who computes how much
// of it is the business of policy `shares`, or even.
//
// Synchronising is the least communication time over the ranks that worked: the last one to arrive
// waits for nobody, so what it spends there is the exchange itself, while for all others it is
// mixed with waiting. What is hidden behind the backward pass costs nothing and is not in it. With
// s seconds of that, f of the slowest rank's optimizer and c of each of its micro-batches, the
// anchor that meets the target t is (s (1 - t) / t - f) / c. Scaling the present anchor by overhead
// over target, as is usual, undershoots, because the share falls slower than the anchor grows, and
// takes several changes; this takes one, and each change asks something of the learning rate.
//
// What counts is the median over the rounds since the plan last changed, settle_rounds at least, 32
// at most, so a pause of some steps does not count. It raises the anchor when 5 % more than the
// present one is needed, by 5 % too much, and lowers it when half would do; between the two, and so
// under any noise of a few percent, nothing changes. A step is never smaller than the job's own.
#pragma once

#include "coordinator/core/policy.h"

namespace cox {

class AccumulationPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::accumulation; }
  std::string_view name() const override { return "accumulation"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
