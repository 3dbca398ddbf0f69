#include "coordinator/planner/budget_front.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/budget_search.h"
#include "coordinator/planner/memory_schedule.h"

namespace cox::planner {
namespace {

constexpr std::size_t kFirstLabels = 128;

MemoryPoint priced(const MemoryProblem& problem, std::vector<MemoryAction> actions) {
  const ScheduledStep step = schedule(problem, actions);
  return {step.peak_bytes, step.added_us, std::move(actions)};
}

// What is known of the budgets in (past, upto]: a plan for `upto` has been looked for.
struct Searched {
  std::int64_t budget_bytes = 0;
  std::int64_t bound_us = 0;  // of every budget up to this one
};

// The largest difference between a looked-up time and what may be possible. Searched budgets
// descend; each bound holds for all budgets up to its own.
std::int64_t largest_gap(const MemoryFront& front, const std::vector<Searched>& searched) {
  std::int64_t gap = 0;
  for (std::size_t i = 0; i < searched.size(); ++i) {
    const bool is_last = i + 1 == searched.size();
    const std::int64_t lowest = is_last ? 0 : searched[i + 1].budget_bytes + 1;
    const std::int64_t least = front.front().peak_bytes;
    if (least > searched[i].budget_bytes) continue;
    const std::size_t worst = *lookup(front, std::max(lowest, least));
    gap = std::max(gap, front[worst].added_us - searched[i].bound_us);
  }
  return gap;
}

}  // namespace

std::int64_t boundless(const MemoryProblem& problem) {
  std::int64_t bytes = problem.base_bytes;
  for (const Stage& stage : problem.stages) {
    std::int64_t most = 0;
    for (const StageOption& o : stage.options) {
      if (o.allowed)
        most = std::max(most, std::max(o.forward_high_bytes, o.backward_high_bytes) + o.kept_bytes +
                                  o.copied_bytes);
    }
    bytes += most;
  }
  return bytes;
}

SolvedFront budget_front(const MemoryProblem& problem, const FrontLimits& limits,
                         std::int64_t range_bytes, MemoryFront known) {
  const BudgetSearch search(problem);
  const std::int64_t stride =
      std::max<std::int64_t>(1, range_bytes / static_cast<std::int64_t>(limits.most_budgets));
  const std::size_t first = std::min(kFirstLabels, limits.most_labels);
  SolvedFront solved;
  std::vector<Searched> searched;
  std::int64_t infeasible = -1;
  std::int64_t budget = boundless(problem);
  for (std::size_t i = 0; i < limits.most_budgets; ++i) {
    SearchResult found = search.run_to_proof({budget, kNever, first}, limits.most_labels);
    solved.labels += found.labels;
    if (found.actions.empty()) {
      infeasible = budget;
      break;
    }
    known.push_back(priced(problem, std::move(found.actions)));
    searched.push_back({budget, found.bound_us});
    budget = std::min(known.back().peak_bytes - 1, budget - stride);
  }
  if (known.empty()) return solved;
  solved.front = front_of(std::move(known));
  if (infeasible >= 0) {
    std::vector<MemoryPoint> points = solved.front;
    points.push_back(towards_least(problem, first, infeasible, solved.front.front(), 16));
    solved.front = front_of(std::move(points));
  }
  solved.gap_us = largest_gap(solved.front, searched);
  return solved;
}

MemoryPoint towards_least(const MemoryProblem& problem, std::size_t most_labels,
                          std::int64_t infeasible_bytes, MemoryPoint point, std::size_t searches) {
  const BudgetSearch search(problem);
  for (std::size_t i = 0; i < searches && infeasible_bytes + 1 < point.peak_bytes; ++i) {
    const std::int64_t middle = infeasible_bytes + (point.peak_bytes - infeasible_bytes) / 2;
    SearchResult found = search.run({middle, kNever, most_labels});
    if (found.actions.empty())
      infeasible_bytes = middle;
    else
      point = priced(problem, std::move(found.actions));
  }
  return point;
}

}  // namespace cox::planner
