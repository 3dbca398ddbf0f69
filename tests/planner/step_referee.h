// What tests and benchmarks compare plans of whole steps with: a referee that executes a schedule
// tensor by tensor and trusts nobody, and Dynamic Tensor Rematerialization (Kirisame et al.,
// arXiv 2006.09616) under the same accounting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/planner/step_graph.h"

namespace cox::test {

struct RefereedStep {
  std::int64_t peak_bytes = 0;  // with base_bytes
  std::int64_t ns = 0;
  std::string error;  // empty: every read found its tensor, and the step's results are there
};
// Runs every action. An operator needs room for all that it makes beside all that is there; of what
// it makes again while it is there the new copy goes at once.
RefereedStep execute(const planner::StepGraph& graph,
                     const std::vector<planner::StepAction>& schedule);

// DTR as in the paper's sections 2 and 4.1, with its exact heuristic h_DTR: under the budget it
// runs the step as it comes, without knowing what follows, and where an operator needs room it
// evicts the tensor with the least (cost + cost of its evicted neighbourhood) / (bytes *
// staleness). The neighbourhood has the evicted tensors that it would need, through evicted ones,
// and those that would need it. Staleness counts in time of operators since the last use. What an
// operator reads or makes is not evicted while it is needed; neither are results of the step. When
// the program no longer holds a tensor it is evicted at once (eager eviction); one that is made
// again after that stays until it is evicted by the heuristic. An operator that makes several
// tensors costs each of them its whole time. Returns nothing where the budget is not enough.
std::optional<std::vector<planner::StepAction>> dtr(const planner::StepGraph& graph,
                                                    std::int64_t budget_bytes);

}  // namespace cox::test
