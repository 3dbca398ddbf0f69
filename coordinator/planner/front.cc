#include "coordinator/planner/front.h"

#include <algorithm>
#include <string>
#include <utility>

#include "coordinator/planner/budget_front.h"
#include "coordinator/planner/budget_search.h"
#include "coordinator/planner/chain_front.h"
#include "coordinator/planner/linear_bound.h"
#include "coordinator/planner/memory_schedule.h"
#include "coordinator/planner/step_tables.h"
#include "coordinator/planner/tie_break.h"

namespace cox::planner {
namespace {

constexpr std::size_t kBoundPlaces = 16;
constexpr std::size_t kFirstLabels = 128;
constexpr std::size_t kSeedPoints = 256;

Status no_plan_at_all() {
  return failed_precondition(
      "memory problem: expected at least one plan within its caps, found none: raise tier_bytes "
      "or most_recomputed, or allow keep in more stages");
}

// What the front may miss at most, over all budgets: between two points the lower one is used.
std::int64_t gap_to(const LinearBound& bound, const MemoryFront& front) {
  std::int64_t gap = 0;
  for (std::size_t i = 0; i + 1 < front.size(); ++i)
    gap = std::max(gap, front[i].added_us - bound.added_us(front[i + 1].peak_bytes - 1));
  return gap;
}

SolvedFront from_chain(const MemoryProblem& problem, ChainFront chain) {
  SolvedFront solved{std::move(chain.front), 0, chain.labels};
  if (!chain.is_exact) solved.gap_us = gap_to(LinearBound(problem, kBoundPlaces), solved.front);
  return solved;
}

bool is_within_caps(const MemoryProblem& problem, const MemoryPoint& point) {
  return is_permitted(problem, point.actions);
}

Status check(const MemoryProblem& problem, const FrontLimits& limits) {
  if (limits.most_points < 2 || limits.most_budgets < 1 || limits.most_labels < 1)
    return invalid_argument(
        "planner: expected most_points >= 2, most_budgets and most_labels >= 1");
  return validate(problem);
}

// A narrow search was not enough: wider ones start from the best plan without copies, if that is
// better than what the narrow one found.
SearchResult improved(const MemoryProblem& problem, const BudgetSearch& search,
                      std::int64_t budget_bytes, std::size_t most_labels, SearchResult found) {
  ChainFront chain = chain_front(problem, kSeedPoints);
  std::erase_if(chain.front, [&](const MemoryPoint& p) { return !is_within_caps(problem, p); });
  const auto seed = lookup(chain.front, budget_bytes);
  if (seed && chain.front[*seed].added_us < found.added_us) {
    found.added_us = chain.front[*seed].added_us;
    found.actions = std::move(chain.front[*seed].actions);
  }
  const std::size_t next = std::min(8 * kFirstLabels, most_labels);
  if (found.is_proven() || most_labels <= kFirstLabels) return found;
  SearchResult wider = search.run_to_proof({budget_bytes, found.added_us, next}, most_labels);
  wider.labels += found.labels;
  wider.bound_us = std::max(wider.bound_us, found.bound_us);
  if (!wider.actions.empty()) return wider;
  wider.added_us = found.added_us;
  wider.actions = std::move(found.actions);
  return wider;
}

}  // namespace

Result<SolvedFront> solve_front(const MemoryProblem& problem, const FrontLimits& limits) {
  if (const Status status = check(problem, limits); !status.ok()) return status;
  const StepTables tables(problem);
  ChainFront chain = chain_front(problem, limits.most_points);
  if (!tables.can_offload && !tables.is_recompute_scarce && !tables.is_tier_scarce)
    return from_chain(problem, std::move(chain));
  std::erase_if(chain.front, [&](const MemoryPoint& p) { return !is_within_caps(problem, p); });
  SolvedFront solved = budget_front(problem, limits, std::move(chain.front));
  if (solved.front.empty()) return no_plan_at_all();
  solved.labels += chain.labels;
  return solved;
}

Result<BudgetAnswer> solve_budget(const MemoryProblem& problem, std::int64_t budget_bytes,
                                  std::size_t most_labels, TieBreak tie_break) {
  if (const Status status = validate(problem); !status.ok()) return status;
  budget_bytes = std::clamp<std::int64_t>(budget_bytes, -1, boundless(problem));
  const BudgetSearch search(problem);
  const std::size_t first = std::min(kFirstLabels, most_labels);
  SearchResult found = search.run_to_proof({budget_bytes, kNever, first}, first);
  if (!found.is_proven()) found = improved(problem, search, budget_bytes, most_labels, found);
  BudgetAnswer answer;
  answer.bound_us = found.bound_us;
  answer.labels = found.labels;
  const bool fits = !found.actions.empty();
  if (!fits) found = search.run_to_proof({boundless(problem), kNever, first}, most_labels);
  if (found.actions.empty()) return no_plan_at_all();
  const ScheduledStep step = schedule(problem, found.actions);
  MemoryPoint point{step.peak_bytes, step.added_us, std::move(found.actions)};
  if (!fits) {
    point = towards_least(problem, most_labels, budget_bytes, std::move(point), 64);
  } else if (tie_break == TieBreak::named && answer.bound_us >= point.added_us) {
    point = named_among_equals(problem, std::move(point), {most_labels});
  }
  answer.least_peak_bytes = point.peak_bytes;
  if (fits) answer.best = std::move(point);
  return answer;
}

}  // namespace cox::planner
