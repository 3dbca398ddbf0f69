// The planner's interface: from a problem to the front of peak bytes against added time, and from a
// budget to a plan. A budget is a lookup in the front (core/memory_front.h), so more bytes never
// mean more time. Limits count work, not seconds: equal problems give equal fronts everywhere.
// Pure; any thread. Large problems take tens of milliseconds and more, so keep off the training
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct FrontLimits {
  std::size_t most_points = 512;   // points of the front, and of each stage's partial front; >= 2
  std::size_t most_budgets = 48;   // searched one by one, with copies or caps; >= 1
  std::size_t most_labels = 1024;  // per stage, in each such search; >= 1
  std::size_t most_labels_in_all = 2'000'000;  // no further budget is searched after this
};

struct SolvedFront {
  MemoryFront front;  // never empty
  // Upper bound, over all budgets, on the looked-up plan's added time minus the optimum.
  std::int64_t gap_us = 0;
  std::size_t labels = 0;  // partial plans made: the work done
  bool is_exact() const { return gap_us == 0; }
};

// Returns the front. Each point has schedule()'s peak and time. Errors: invalid_argument for an
// invalid problem; failed_precondition when the caps permit no plan.
Result<SolvedFront> solve_front(const MemoryProblem& problem, const FrontLimits& limits = {});

// BudgetAnswer is the answer for one budget. `best` is empty if nothing fits. least_peak_bytes is
// then the smallest sufficient budget, or an upper bound on it if the search reached its limits.
struct BudgetAnswer {
  std::optional<MemoryPoint> best;
  std::int64_t bound_us = 0;  // proven lower bound on the added time; equals best's time if exact
  std::int64_t least_peak_bytes = 0;
  std::size_t labels = 0;
  bool is_exact() const { return !best || bound_us >= best->added_us; }
};
// TieBreak selects among plans of least time. `any` takes any plan. `named` takes the plan with the
// least peak, and among those the first one from stage 0 on, in the order of kActionsInOrder: keep,
// levels of recompute from light to heavy, recompute in full, offload, tile.
enum class TieBreak { any, named };
Result<BudgetAnswer> solve_budget(const MemoryProblem& problem, std::int64_t budget_bytes,
                                  std::size_t most_labels, TieBreak tie_break);

}  // namespace cox::planner
