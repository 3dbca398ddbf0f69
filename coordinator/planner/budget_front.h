// The front of a problem with copies or caps: budgets are searched one by one, always where most
// time may still be missed. Part of the planner's inside.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/planner/front.h"

namespace cox::planner {

// `known` are permitted plans found otherwise; they only help. Empty front: no plan was found.
SolvedFront budget_front(const MemoryProblem& problem, const FrontLimits& limits,
                         MemoryFront known);

// Any budget that every plan fits.
std::int64_t boundless(const MemoryProblem& problem);

// A point of less peak than `point` if there is one above `infeasible_bytes`: halves the distance
// until it is the least or the searches run out.
MemoryPoint towards_least(const MemoryProblem& problem, std::size_t most_labels,
                          std::int64_t infeasible_bytes, MemoryPoint point, std::size_t searches);

}  // namespace cox::planner
