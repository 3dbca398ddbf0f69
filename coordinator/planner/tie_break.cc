#include "coordinator/planner/tie_break.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/memory_schedule.h"
#include "coordinator/planner/step_tables.h"

namespace cox::planner {
namespace {

constexpr std::size_t kFirstLabels = 128;

class TieBreaker {
 public:
  TieBreaker(const MemoryProblem& problem, MemoryPoint point, const TieLimits& limits)
      : problem_(problem), point_(std::move(point)), limits_(limits) {}

  MemoryPoint run() {
    lower_peak();
    for (std::size_t i = 0; i < problem_.stages.size() && !is_spent(); ++i) settle(i);
    return std::move(point_);
  }

 private:
  bool is_spent() const { return labels_ >= limits_.labels_in_all; }

  // Replaces the plan by one within the budget that adds no more, if there is one.
  bool improve(std::int64_t budget_bytes) {
    const BudgetSearch search(problem_);
    const std::size_t first = std::min(kFirstLabels, limits_.labels_per_stage);
    SearchResult found =
        search.run_to_proof({budget_bytes, point_.added_us + 1, first}, limits_.labels_per_stage);
    labels_ += found.labels;
    if (found.actions.empty()) return false;
    const ScheduledStep step = schedule(problem_, found.actions);
    point_ = {step.peak_bytes, step.added_us, std::move(found.actions)};
    return true;
  }

  void lower_peak() {
    std::int64_t low = problem_.base_bytes - 1;
    while (low + 1 < point_.peak_bytes && !is_spent()) {
      const std::int64_t middle = low + (point_.peak_bytes - low) / 2;
      if (!improve(middle)) low = middle;
    }
  }

  // Fixes the first action of the stage with which a plan is as good.
  void settle(std::size_t stage) {
    std::array<StageOption, kActions>& options = problem_.stages[stage].options;
    const std::array<StageOption, kActions> all = options;
    const auto only = [&](std::size_t action) {
      for (std::size_t a = 0; a < kActions; ++a) options[a].allowed = a == action;
    };
    for (std::size_t a = 0; a < static_cast<std::size_t>(point_.actions[stage]); ++a) {
      if (!all[a].allowed) continue;
      only(a);
      if (improve(point_.peak_bytes)) break;
    }
    only(static_cast<std::size_t>(point_.actions[stage]));
  }

  MemoryProblem problem_;  // ever more of it fixed
  MemoryPoint point_;
  TieLimits limits_;
  std::size_t labels_ = 0;
};

}  // namespace

MemoryPoint named_among_equals(const MemoryProblem& problem, MemoryPoint point,
                               const TieLimits& limits) {
  return TieBreaker(problem, std::move(point), limits).run();
}

}  // namespace cox::planner
