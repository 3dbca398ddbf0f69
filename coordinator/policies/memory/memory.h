// Memory: decides which blocks each rank recomputes, offloads or tiles, so that its peak stays
// within its budget at the least added time. The search was done before the first round: every rank
// has a front of plans (JobFacts::memory), a budget is a lookup in it, and ranks may differ,
// because memory actions change no bit of the result. In a round the policy corrects its
// predictions by the peaks that were measured, sets the budgets, moves ranks along their fronts
// without going back and forth (all three in model.h), and explains the changes with numbers.
//
// Predictions are per share: where a rank works on its samples at once, its activations grow with
// them. propose() tells the policies that are asked after it how many samples fit each rank under
// some point of its front (PolicyOutput::most_samples), and fit() gives the ranks whose share grows
// the actions that hold it within the budget, in the same plan.
//
// Forced and forbidden actions hold whatever the front says. An action that failed on a block is
// not used there, on any rank, for memory.retry_rounds rounds, then tried again. Where no plan
// fits, the one with the least memory is used, and a reason names the smallest budget that could be
// met. Stateless and thread-safe; Decide owns the state.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/decide/control_state.h"
#include "coordinator/decide/policy.h"

namespace cox {

class MemoryPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::memory; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
  // Takes heavier actions where the shares of the draft need them.
  PolicyOutput fit(const PolicyInput& input, const Plan& draft, PolicyState state) const override;
  // By the plan of its front that each rank would settle on with the shares of the draft.
  std::vector<double> work_factors(const PolicyInput& input, const Plan& draft,
                                   const PolicyState& state) const override;
};

// Returns the budgets that the policy holds the ranks to, for telemetry: most bytes of a step, one
// entry per rank, 0 where nothing limits it. They are read from the state that the policy keeps, so
// they are those it decides by. Empty where memory is not planned or nothing is known of it. Pure;
// linear in the number of ranks.
std::vector<std::int64_t> memory_budgets(const JobFacts& job, const Config& config,
                                         const ControlState& state);

}  // namespace cox
