// Among plans of equal time, the one that is to be named: the one with the least peak, and of those
// the first in the order keep, recompute, offload, tile from stage 0 on. Makes answers independent
// of the search that found them. Part of the planner's inside; front.h is the door.
#pragma once

#include <cstddef>

#include "coordinator/planner/budget_search.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct TieLimits {
  std::size_t labels_per_stage = 4096;
  std::size_t labels_in_all = std::size_t{1} << 22;  // then the plan found so far stays
};

// Requires: `point` is a permitted plan of the problem, priced by schedule().
MemoryPoint named_among_equals(const MemoryProblem& problem, MemoryPoint point,
                               const TieLimits& limits);

}  // namespace cox::planner
