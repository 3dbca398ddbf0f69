// The memory trial measures, before the first step, every stage of a step under every memory
// action. measure_problem() runs a few passes of a sample step (step_trace.h), and builds a
// MemoryProblem from the readings.
//
// The trial first recomputes all blocks, which takes the least memory. Then it keeps blocks, in as
// many slices as the budget needs, so that the trial respects the budget if a plan can. Then it
// offloads blocks. Stages do not depend on each other's actions, so these passes predict any mix.
// Does not communicate; training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/memory/step_trace.h"

namespace cox::detail {

using Actions = std::vector<MemoryAction>;  // one for each block

// Runs one step, forward and backward, under the actions, and restores the state.
using TrialPass = std::function<Result<StepReading>(const Actions&)>;

class StorageLevels;

struct TrialSettings {
  ActionSet actions = only(MemoryAction::keep);  // to try
  std::int64_t budget_bytes = 0;                 // for the slices; 0 keeps all blocks at once
  std::int64_t copy_bytes_per_ms = 0;            // offload tier's speed
  const StorageLevels* levels = nullptr;         // levels of recompute; null: none
  // Returns whether the passes so far had tiles, so that dropping tiles can be tried; empty = yes.
  std::function<bool()> has_tiles = {};
  // Returns the highest level of the loop's other steps under the actions; empty if all steps are
  // alike.
  std::function<Result<std::int64_t>(const Actions&)> other_peak = {};
};

// Measures the problem of this rank. Returns the first error of `pass`, and failed_precondition if
// the step is no chain of blocks.
Result<MemoryProblem> measure_problem(std::size_t blocks, const TrialSettings& settings,
                                      const TrialPass& pass);

}  // namespace cox::detail
