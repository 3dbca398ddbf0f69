// Seeded memory problems, small enough to try every plan or as large as real ones, and the table of
// all plans of a small one. The same seed gives the same problem. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/memory_problem.h"
#include "coordinator/testing/random.h"

namespace cox::test {

enum class Copies { none, some };
enum class Caps { none, maybe };
enum class Levels { none, some };  // levels of recompute, beside full recompute

// Returns any valid problem, plausible or not.
MemoryProblem wild_problem(testing::Random& random, std::size_t stages, Copies copies, Caps caps,
                           Levels levels = Levels::none);

// Returns a transformer-like chain of blocks with gaps between them. Every block may be kept,
// recomputed or tiled, and offloaded with `copies`. With `levels` a block has 3 to 7 levels of
// recompute, whose first ones drop much for little time.
MemoryProblem block_chain(testing::Random& random, std::size_t blocks, Copies copies,
                          Levels levels = Levels::none);

struct PricedPlan {
  std::int64_t peak_bytes = 0;
  std::int64_t added_us = 0;
};
// Returns every permitted plan, priced by schedule(). REQUIRES: the problem has few stages.
std::vector<PricedPlan> all_plans(const MemoryProblem& problem);

// Returns the least added time within the budget; -1 if nothing fits.
std::int64_t least_added(const std::vector<PricedPlan>& plans, std::int64_t budget_bytes);

}  // namespace cox::test
