// Accumulation: how many micro-batches a step has, so that synchronising stays under a part of its
// time. The slowest rank computes `anchor` of them and the others as many as their shares give
// them; gradients are reduced once and weighted by samples, so they stay those of the whole batch.
// Off unless asked for, because it changes the batch. It sets the batch only; who computes how much
// of it is the business of policy `shares`, or even.
//
// The decision rests on the median of what synchronising cost (model.h) over the rounds since the
// plan last changed, settle_rounds at least, 32 at most, so a pause of some steps does not count.
// It raises the anchor when 5 % more than the present one is needed, by 5 % too much, and lowers it
// when half would do; between the two, and so under any noise of a few percent, nothing changes. A
// step is never smaller than the job's own.
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
