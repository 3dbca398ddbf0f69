// Searches of problems with copies or caps: the least added time under one budget, and the front of
// many budgets. Budgets are searched one by one, next where the most time may still be missed.
// Stages are decided in forward order. A label is a set of decisions so far, reduced to its effects
// on the remaining stages. Proof of exactness: docs/memory-profile.md. Internal to the planner;
// front.h is its interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/bounds.h"
#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

inline constexpr std::size_t kFirstLabels = 128;  // per stage, in the first search of a budget

// Returns the plan as a point of the front, with schedule()'s peak and time.
MemoryPoint priced(const MemoryProblem& problem, std::vector<MemoryAction> actions);

struct SearchOrder {
  std::int64_t budget_bytes = 0;
  std::int64_t below_us = kNever;       // only plans that add less count
  std::size_t labels_per_stage = 4096;  // more labels are cut, the least promising first
};

struct SearchResult {
  std::vector<MemoryAction> actions;  // empty: no plan was found
  std::int64_t added_us = kNever;
  // Lower bound, up to below_us, on the added time of permitted plans within the budget.
  std::int64_t bound_us = 0;
  std::size_t labels = 0;  // number of labels made, in all stages
  bool is_proven() const { return bound_us >= added_us; }
};

class BudgetSearch {
 public:
  // REQUIRES: a valid problem that outlives the search.
  explicit BudgetSearch(const MemoryProblem& problem);

  SearchResult run(const SearchOrder& order) const;
  // Repeats the search with more labels until a result is proven or `most_labels` a stage are
  // reached.
  SearchResult run_to_proof(SearchOrder order, std::size_t most_labels) const;

 private:
  StepTables tables_;
};

// Returns the front of many budgets, or an empty front when no plan was found. `known` holds
// permitted plans from other searches, which only make the search quicker or its result better.
SolvedFront budget_front(const MemoryProblem& problem, const FrontLimits& limits,
                         MemoryFront known);

// Returns a budget that no plan of the problem exceeds.
std::int64_t boundless(const MemoryProblem& problem);

// Returns a point with a lower peak than `point`, if the search finds one above `infeasible_bytes`.
// Bisects between the two until the peak is the least or `searches` are used up.
MemoryPoint towards_least(const MemoryProblem& problem, std::size_t most_labels,
                          std::int64_t infeasible_bytes, MemoryPoint point, std::size_t searches);

}  // namespace cox::planner
