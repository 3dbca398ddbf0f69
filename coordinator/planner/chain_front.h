// The whole front of a problem without copies and caps, in one pass from the last stage to the
// first. What is kept before a stage lifts everything behind it alike, so the stages from one on
// are told by how far they reach above the level before them, and by the time they add: two
// numbers, whatever the budget. Exact as long as no stage has more points than the limit.
#pragma once

#include <cstddef>

#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct ChainFront {
  MemoryFront front;
  bool is_exact = true;    // no point was dropped
  std::size_t labels = 0;  // points made, in all stages
};

// Leaves offload out. Requires: a valid problem; most_points >= 2. Empty if a stage has no other
// action allowed.
ChainFront chain_front(const MemoryProblem& problem, std::size_t most_points);

}  // namespace cox::planner
