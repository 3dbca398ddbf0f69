// Memory: which blocks each rank recomputes, offloads or tiles, so that its peak stays within its
// budget at the least added time. The search was done before the first round: every rank has a
// front of plans (JobFacts::memory), a budget is a lookup in it, and ranks may differ, because
// memory actions change no bit of the result. This policy sets the budgets (memory_budget.h),
// corrects predictions by what was measured (memory_round.h), moves ranks along their fronts
// without going back and forth (memory_choice.h), and tells why, with numbers (memory_words.h).
//
// Forced and forbidden actions hold whatever the front says. An action that failed on a block is
// not used there, on any rank, for memory.retry_rounds rounds, then tried again. Where no plan fits
// the one with the least memory is used, and the smallest budget that could be met is said.
#pragma once

#include "coordinator/core/policy.h"
#include "coordinator/core/status.h"

namespace cox {

class MemoryPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::memory; }
  std::string_view name() const override { return "memory"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
