// Searches of problems with copies or caps: the least added time under one budget, and the front of
// many budgets, searched one by one, always where most time may still be missed. Stages are decided
// in forward order; a label is a set of decisions so far, reduced to what the rest can feel of it.
// docs/memory-profile.md says why that is exact. Internal to the planner; front.h is its interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/bounds.h"
#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

inline constexpr std::size_t kFirstLabels = 128;  // a stage, in the first search of a budget

// Returns the plan as a point of the front, with the peak and time of schedule().
MemoryPoint priced(const MemoryProblem& problem, std::vector<MemoryAction> actions);

struct SearchOrder {
  std::int64_t budget_bytes = 0;
  std::int64_t below_us = kNever;       // only plans that add less than this count
  std::size_t labels_per_stage = 4096;  // beyond these the least promising are cut
};

struct SearchResult {
  std::vector<MemoryAction> actions;  // empty: none was found
  std::int64_t added_us = kNever;
  std::int64_t bound_us = 0;  // no permitted plan within the budget adds less, up to below_us
  std::size_t labels = 0;     // made, in all stages: the work that was done
  bool is_proven() const { return bound_us >= added_us; }
};

class BudgetSearch {
 public:
  // REQUIRES: a valid problem that outlives this.
  explicit BudgetSearch(const MemoryProblem& problem);

  SearchResult run(const SearchOrder& order) const;
  // Searches wider and wider until a result is proven or `most_labels` a stage are reached.
  SearchResult run_to_proof(SearchOrder order, std::size_t most_labels) const;

 private:
  StepTables tables_;
};

// Returns the front of many budgets; empty when no plan was found. `known` has permitted plans that
// were found in another way, and only makes the search quicker or its result better.
SolvedFront budget_front(const MemoryProblem& problem, const FrontLimits& limits,
                         MemoryFront known);

// Returns a budget that no plan of the problem exceeds.
std::int64_t boundless(const MemoryProblem& problem);

// Returns a point of less peak than `point` if there is one above `infeasible_bytes`. Halves the
// distance until it has the least or the searches run out.
MemoryPoint towards_least(const MemoryProblem& problem, std::size_t most_labels,
                          std::int64_t infeasible_bytes, MemoryPoint point, std::size_t searches);

}  // namespace cox::planner
