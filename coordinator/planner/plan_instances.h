// Planning problems with known answers, as files: chains of blocks with interior activations,
// boundaries, workspaces, a bandwidth and a list of budgets, in MiB and microseconds. They are a
// special case of MemoryProblem (docs/memory-profile.md); numbers are taken as they are, so bytes
// of the problem are MiB of the file. Pure; the text may be hostile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct PlanInstance {
  std::string id;
  MemoryProblem problem;
  std::vector<std::int64_t> budgets;
};

// invalid_argument naming the instance and field that is not as it should be; what the JSON
// reader says where the text is no JSON.
Result<std::vector<PlanInstance>> read_instances(std::string_view text);

// One letter a stage: K, R, O, T.
std::string letters(const std::vector<MemoryAction>& actions);

}  // namespace cox::planner
