#include "coordinator/policies/memory_budget.h"

#include <algorithm>

namespace cox {
namespace {

constexpr double kUsable = 0.85;  // of a limit
constexpr double kConservative = 0.90;
constexpr double kBalanced = 0.75;
constexpr double kAggressive = 0.50;

std::int64_t part(double ratio, std::int64_t bytes) {
  return static_cast<std::int64_t>(ratio * static_cast<double>(bytes));
}

std::int64_t of_mode(BudgetKind kind, const RankMemory& rank) {
  const std::int64_t usable = part(kUsable, rank.limit_bytes);
  const bool plans_anyway = kind == BudgetKind::aggressive && !rank.straggles;
  if (!plans_anyway && rank.keep_bytes <= usable) return usable;
  if (rank.straggles || kind == BudgetKind::conservative) return part(kConservative, usable);
  return part(kind == BudgetKind::balanced ? kBalanced : kAggressive, usable);
}

}  // namespace

RankBudget budget_of(const MemoryConfig& config, const RankMemory& rank) {
  const auto own = config.budget_of_rank.find(rank.rank.value());
  const MemoryBudget& wish = own == config.budget_of_rank.end() ? config.budget : own->second;
  const std::int64_t limit = rank.limit_bytes;
  RankBudget budget;
  switch (wish.kind) {
    case BudgetKind::none:
      if (limit > 0) budget.bytes = part(kUsable, limit);
      return budget;
    case BudgetKind::bytes:
      budget.bytes = limit > 0 ? std::min(limit, wish.bytes) : wish.bytes;
      return budget;
    case BudgetKind::fraction:
      budget.needs_limit = limit <= 0;
      if (limit > 0) budget.bytes = part(wish.fraction, limit);
      return budget;
    default:
      budget.needs_limit = limit <= 0;
      budget.yields = true;
      if (limit > 0) budget.bytes = of_mode(wish.kind, rank);
      return budget;
  }
}

}  // namespace cox
