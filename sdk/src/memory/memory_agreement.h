// Functions that exchange each rank's memory measurements. Collective; wait by polling. Training
// thread.
#pragma once

#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/blocks/steered_region.h"

namespace cox::detail {

// Returns `regions` with rank 0's figures if all ranks have the same operators. A level of
// recompute is then the same set of storages on all ranks, so one front serves all ranks. Else
// returns `regions` unchanged.
Result<MeasuredRegions> with_figures_of_root(transport::Communicator& ranks,
                                             MeasuredRegions regions);

// Gathers the problems of all ranks: returns one entry for each rank on rank 0, nothing on the
// others. REQUIRES: no round has begun.
Result<std::vector<planner::RankProblem>> gather_problems(transport::Communicator& ranks,
                                                          const planner::RankProblem& mine);

}  // namespace cox::detail
