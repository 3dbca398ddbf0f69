// Shares: how many units of a step's batch (micro-batches of the job, or samples) each rank takes,
// so that all finish together. Speeds are those of the estimates (estimates/speeds.h), times the
// factors of the plans that ranks would settle on with other shares (WorkFactors). The best whole
// assignment under minima and caps is exact (planner/share_assignment.h); where factors depend on
// it, it is the best of those that follow from each other. A change is proposed when all of this
// holds:
//
//   - every rank has been measured for shares.settle_rounds reports since the start, and as many
//     rounds have passed under the present shares; no plan is in flight, and no rank has finished;
//   - the predicted step is shorter by smallest_gain_ratio, or by one and a half times that where
//     no rank's speed has changed since the shares last did (the rest of an estimate's error is
//     not worth a second change), by four deviations of the slowest rank's estimate, and over the
//     whole interval that the prediction has;
//   - that was so in three rounds in which no rank looked as if it were changing just now.
//
// So noise moves nothing, and a real change of speed moves shares once. Limits that the present
// shares break need no gain. config.shares.hint says where shares start, before anything is known.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/decide/policy.h"

namespace cox {

class SharesPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::shares; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

// Returns units as shares of a plan, which has at most 2^20 a rank: larger ones are rounded in
// proportion.
std::vector<std::uint32_t> shares_of(const std::vector<std::uint64_t>& units);

}  // namespace cox
