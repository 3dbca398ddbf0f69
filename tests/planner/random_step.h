// Random steps for tests of plans over operator graphs.
#pragma once

#include <cstdint>
#include <random>

#include "coordinator/planner/step_graph.h"

namespace cox::test {

// Returns a number from low to high.
std::int64_t drawn(std::mt19937_64& random, std::int64_t low, std::int64_t high);

// Returns a chain of `length` operators with skips forward, and backward through it: each
// operator's backward reads its inputs. REQUIRES: length > 0.
planner::StepGraph random_step(std::mt19937_64& random, std::int32_t length);

}  // namespace cox::test
