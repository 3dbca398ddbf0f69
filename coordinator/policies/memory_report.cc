#include "coordinator/policies/memory_report.h"

#include <algorithm>

#include "coordinator/policies/memory_budget.h"
#include "coordinator/policies/memory_notes.h"
#include "coordinator/policies/memory_round.h"

namespace cox {
namespace {

NumbersState kept_state(const ControlState& state) {
  const auto found =
      std::find_if(state.policies.begin(), state.policies.end(),
                   [](const NamedPolicyState& named) { return named.policy == "memory"; });
  if (found == state.policies.end()) return {};
  return PolicyState(found->state).take_or_fresh<NumbersState>();
}

RankMemory rank_memory(const JobFacts& job, const MemoryNotes& notes, std::size_t rank) {
  const MemoryFacts& facts = job.memory;
  const std::size_t model = facts.model_of_rank.empty() ? 0 : facts.model_of_rank[rank];
  const std::int64_t keep = facts.models[model].front.back().peak_bytes;
  RankMemory memory;
  memory.rank = RankId(static_cast<std::int32_t>(rank));
  memory.limit_bytes = static_cast<std::int64_t>(notes.limit[rank]);
  if (memory.limit_bytes == 0 && !facts.limit_bytes.empty()) {
    memory.limit_bytes = facts.limit_bytes[rank];
  }
  memory.keep_bytes = keep + static_cast<std::int64_t>(notes.correction[rank]);
  const bool is_known_to_break =
      notes.ceiling[rank] > 0 && static_cast<double>(keep) >= notes.ceiling[rank];
  if (is_known_to_break) memory.keep_bytes = kNoBudget;
  memory.straggles = notes.straggles[rank] != 0;
  return memory;
}

}  // namespace

std::vector<std::int64_t> memory_budgets(const JobFacts& job, const Config& config,
                                         const ControlState& state) {
  std::vector<std::int64_t> budgets;
  if (mode_of(config, "memory", PolicyMode::off) == PolicyMode::off || !facts_fit(job)) {
    return budgets;
  }
  const MemoryNotes notes(kept_state(state), job, config.memory);
  budgets.resize(static_cast<std::size_t>(job.world_size));
  for (std::size_t r = 0; r < budgets.size(); ++r) {
    const std::int64_t bytes = budget_of(config.memory, rank_memory(job, notes, r)).bytes;
    budgets[r] = bytes == kNoBudget ? 0 : bytes;
  }
  return budgets;
}

}  // namespace cox
