// Functions by which ranks exchange what each of them measured of its memory. They take values and
// return values, whoever measured them. Collective; block by polling. Training thread.
#pragma once

#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/blocks/steered_region.h"

namespace cox::detail {

// Returns these regions with the figures that rank 0 measured, where all ranks have the same
// operators: a level of recompute is then the same set of storages on all ranks, and one front
// serves them all. Returns them as they are elsewhere.
Result<MeasuredRegions> with_figures_of_root(transport::Communicator& ranks,
                                             MeasuredRegions regions);

// Brings the problems of all ranks together: returns one entry per rank on rank 0, nothing on the
// others. REQUIRES: no round has begun.
Result<std::vector<planner::RankProblem>> gather_problems(transport::Communicator& ranks,
                                                          const planner::RankProblem& mine);

}  // namespace cox::detail
