// The front of a problem with copies or caps: budgets are searched one after another from the
// largest down, each below the peak of the plan found before. Part of the planner's inside.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/planner/front.h"

namespace cox::planner {

// `range_bytes` is what the searched budgets are spread over; `known` are points found otherwise,
// which only help. Empty front: no plan was found at any budget.
SolvedFront budget_front(const MemoryProblem& problem, const FrontLimits& limits,
                         std::int64_t range_bytes, MemoryFront known);

// Any budget that every plan fits.
std::int64_t boundless(const MemoryProblem& problem);

// A point of no larger peak for each budget between `infeasible_bytes` and that of `point`, halving
// the distance until one is proven least or the searches run out.
MemoryPoint towards_least(const MemoryProblem& problem, std::size_t most_labels,
                          std::int64_t infeasible_bytes, MemoryPoint point, std::size_t searches);

}  // namespace cox::planner
