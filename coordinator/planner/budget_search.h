// The least added time of one problem under one budget, copies included. Stages are decided in
// forward order; a label is a set of decisions so far, reduced to what the rest can feel of it.
// docs/memory-profile.md says why that is exact. Part of the planner's inside: front.h is the door.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "coordinator/planner/memory_problem.h"
#include "coordinator/planner/step_tables.h"

namespace cox::planner {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;

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
  // Requires: a valid problem that outlives this.
  explicit BudgetSearch(const MemoryProblem& problem);

  SearchResult run(const SearchOrder& order) const;
  // With wider and wider searches until one is proven or `most_labels` a stage are reached.
  SearchResult run_to_proof(SearchOrder order, std::size_t most_labels) const;

 private:
  StepTables tables_;
};

}  // namespace cox::planner
