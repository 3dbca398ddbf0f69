// The interface of the planner: from a problem to the trade between peak bytes and added time, and
// from a budget to a plan. A budget is a lookup (core/memory_front.h), so more bytes never mean
// more time. Limits count work, not seconds: the same problem gives the same front everywhere.
// Pure; any thread; large problems take tens of milliseconds and more, so not on a training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct FrontLimits {
  std::size_t most_points = 512;   // of the front, and of each stage's part of it; >= 2
  std::size_t most_budgets = 48;   // searched one by one where copies or caps matter; >= 1
  std::size_t most_labels = 1024;  // a stage, in each such search; >= 1
  std::size_t most_labels_in_all = 2'000'000;  // then no further budget is searched
};

struct SolvedFront {
  MemoryFront front;  // never empty
  // At no budget does a permitted plan add less than the looked-up one minus this.
  std::int64_t gap_us = 0;
  std::size_t labels = 0;  // partial plans that were made: the work
  bool is_exact() const { return gap_us == 0; }
};

// Returns the front. Every point's peak and time are those of schedule(). Errors: invalid_argument
// for a problem that is not valid; failed_precondition when the caps leave no plan at all.
Result<SolvedFront> solve_front(const MemoryProblem& problem, const FrontLimits& limits = {});

// BudgetAnswer is the answer for one budget, searched to the end. `best` is empty if nothing fits;
// then least_peak_bytes is the smallest budget that would do, or an upper bound of it where the
// search reached its limits.
struct BudgetAnswer {
  std::optional<MemoryPoint> best;
  std::int64_t bound_us = 0;  // proven: no plan adds less; equal to best's time when exact
  std::int64_t least_peak_bytes = 0;
  std::size_t labels = 0;
  bool is_exact() const { return !best || bound_us >= best->added_us; }
};
// TieBreak says which plan to name among those of least time: any, or the one with the least peak,
// and of those the first in the order of kActionsInOrder (keep, levels of recompute from light to
// heavy, recompute in full, offload, tile) from stage 0 on.
enum class TieBreak { any, named };
Result<BudgetAnswer> solve_budget(const MemoryProblem& problem, std::int64_t budget_bytes,
                                  std::size_t most_labels, TieBreak tie_break);

}  // namespace cox::planner
