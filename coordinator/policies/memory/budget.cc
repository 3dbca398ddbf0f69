#include "coordinator/policies/memory/budget.h"

#include <algorithm>

namespace cox {
namespace {

constexpr double kUsable = 0.85;  // of a rank's limit

// Parts of the usable bytes.
constexpr double kConservative = 0.90;
constexpr double kBalanced = 0.75;
constexpr double kAggressive = 0.50;

std::int64_t bytes_of_mode(BudgetKind kind, const RankMemory& rank) {
  const std::int64_t usable = part(kUsable, rank.limit_bytes);
  const bool plans_anyway = kind == BudgetKind::aggressive && !rank.straggles;
  if (!plans_anyway && rank.keep_bytes <= usable) return usable;
  if (rank.straggles || kind == BudgetKind::conservative) return part(kConservative, usable);
  return part(kind == BudgetKind::balanced ? kBalanced : kAggressive, usable);
}

}  // namespace

RankBudget budget_of(const MemoryConfig& config, const RankMemory& rank) {
  const auto own = config.budget_of_rank.find(rank.rank.value());
  const MemoryBudget& asked = own == config.budget_of_rank.end() ? config.budget : own->second;
  const std::int64_t limit = rank.limit_bytes;
  if (asked.kind == BudgetKind::bytes) {
    return {limit > 0 ? std::min(limit, asked.bytes) : asked.bytes, false};
  }
  if (limit <= 0) return {kNoBudget, asked.kind != BudgetKind::none};
  if (asked.kind == BudgetKind::none) return {part(kUsable, limit), false};
  if (asked.kind == BudgetKind::fraction) return {part(asked.fraction, limit), false};
  return {bytes_of_mode(asked.kind, rank), false};
}

}  // namespace cox
