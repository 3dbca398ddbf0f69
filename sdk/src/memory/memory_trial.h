// MemoryTrial: finds out, before the first step, what every stage of a step costs under every
// memory action, by running the step a few times on a sample batch and reading the counted bytes.
// First everything is recomputed, which takes the least memory; then blocks are kept in as many
// slices as the budget asks for, so the trial itself stays within it where a plan can; then they
// are offloaded. Stages do not depend on each other's actions, so any mix can be predicted from
// these passes. What runs a pass is passed in. Rank-local; does not communicate.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/memory/step_trace.h"

namespace cox::detail {

using Actions = std::vector<MemoryAction>;  // one per block

// Runs one step, forward and backward, under these actions, and puts back what it changed.
using TrialPass = std::function<Result<StepReading>(const Actions&)>;

struct TrialSettings {
  ActionSet actions = only(MemoryAction::keep);  // what may be tried
  std::int64_t budget_bytes = 0;                 // for the slices; 0 = keep all at once
  std::int64_t copy_bytes_per_ms = 0;            // of the tier that offload uses
};

// The problem as measured. failed_precondition when the step is no chain of blocks.
Result<MemoryProblem> measure_problem(std::size_t blocks, const TrialSettings& settings,
                                      const TrialPass& pass);

// Blocks to keep in each of the passes that together keep every block once: as few as fit into
// `budget_bytes`, going by what each took while it was recomputed. At least one block a slice.
std::vector<std::vector<std::size_t>> slices(const StepReading& recomputed,
                                             std::int64_t budget_bytes);

}  // namespace cox::detail
