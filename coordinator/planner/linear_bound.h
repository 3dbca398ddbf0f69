// A quick lower bound on the added time under a budget, for problems too large to solve to the
// end: for some stages, what must have happened before them for their passes to fit, if a stage
// could be split between its actions and copies cost nothing. Pure once built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

class LinearBound {
 public:
  // Looks at `places` stages, evenly spread, the last always among them.
  LinearBound(const MemoryProblem& problem, std::size_t places);

  // No permitted plan within the budget adds less.
  std::int64_t added_us(std::int64_t budget_bytes) const;

 private:
  struct Corner {
    std::int64_t peak_bytes;  // from this budget on,
    double added_us;          // at least this; linear between corners
  };

  std::vector<std::vector<Corner>> curves_;  // one per place, ascending peak
};

}  // namespace cox::planner
