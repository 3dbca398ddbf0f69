// Memory: decides which blocks each rank recomputes, offloads or tiles, so that its peak stays
// within its budget at the least added time. The search ran before the first round: every rank has
// a front of plans (JobFacts::memory), and a budget is a lookup in the front. Ranks may differ,
// because memory actions change no bit of the result. Stateless and thread-safe; Decide owns the
// state.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/decide/control_state.h"
#include "coordinator/decide/policy.h"

namespace cox {

// In a round the policy corrects predictions by measured peaks, sets the budgets (budget.h), moves
// ranks along their fronts without oscillation (rank_memory.h), and explains the changes with
// numbers.
//
// Predictions are per share: if a rank works on its samples at once, its activations grow with the
// samples. propose() reports how many samples fit each rank under some point of its front
// (PolicyOutput::most_samples), for the policies that are asked later. fit() gives heavier actions,
// in the same plan, to ranks whose share grows beyond the budget.
//
// Forced and forbidden actions have priority over the front. A kind of action that failed on a
// block is not used there, on any rank, for memory.retry_rounds rounds, then tried again. If no
// plan fits, the policy uses the plan of least memory, and a reason names the smallest sufficient
// budget.
class MemoryPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::memory; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
  // Chooses heavier actions if the shares of the draft need more memory than the budget.
  PolicyOutput fit(const PolicyInput& input, const Plan& draft, PolicyState state) const override;
  // Returns factors for the points of their fronts on which ranks would settle with the draft's
  // shares.
  std::vector<double> work_factors(const PolicyInput& input, const Plan& draft,
                                   const PolicyState& state) const override;
};

// Returns the budgets of the ranks for telemetry: most bytes of a step, one entry per rank, 0 if
// unlimited. Reads the policy's state, so the result equals the budgets of its decisions. Empty if
// memory is not planned or no facts are known. Pure; linear in the number of ranks.
std::vector<std::int64_t> memory_budgets(const JobFacts& job, const Config& config,
                                         const ControlState& state);

}  // namespace cox
