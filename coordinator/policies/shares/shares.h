// Shares: chooses how many units of a step's batch each rank takes, so that all ranks finish
// together. A unit is a micro-batch of the job, or a sample. Speeds come from estimates/speeds.h,
// times the factors of the plans that ranks would settle on with other shares (WorkFactors). Under
// minima and caps the best whole assignment is exact (planner/share_assignment.h). If factors
// depend on the assignment, the policy takes the best of a few successive ones.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/decide/policy.h"

namespace cox {

// Proposes a change if all of the following hold, so that noise moves nothing and a real change of
// speed moves shares once:
//
//   - Every rank was measured for shares.settle_rounds reports since the start, and as many rounds
//     have passed under the present shares. No plan is in flight, and no rank has finished.
//   - The predicted step is shorter by smallest_gain_ratio, by four deviations of the slowest
//     rank's estimate, and over the whole interval of the prediction. If no rank's speed has
//     changed since the shares last did, one and a half times smallest_gain_ratio is needed: the
//     remaining error of the estimates is not worth a second change.
//   - Both held in three rounds in which no rank's speed seemed to be changing.
//
// If the present shares break a limit, no gain is needed. config.shares.hint gives the first
// shares, before any measurement.
class SharesPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::shares; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

// Returns units as shares of a plan. A plan has at most 2^20 a rank; larger units are rounded in
// proportion.
std::vector<std::uint32_t> shares_of(const std::vector<std::uint64_t>& units);

}  // namespace cox
