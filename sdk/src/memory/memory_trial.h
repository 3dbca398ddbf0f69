// The memory trial finds out, before the first step, what every stage of a step costs under every
// memory action: measure_problem() asks for a few passes of a sample step (step_trace.h), and makes
// a MemoryProblem of their readings.
//
// The trial first recomputes everything, which takes the least memory; then it keeps blocks in as
// many slices as the budget asks for, so that it stays within the budget itself where a plan can;
// then it offloads them. Stages do not depend on each other's actions, so any mix can be predicted
// from these passes. Does not communicate; training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/memory/step_trace.h"

namespace cox::detail {

using Actions = std::vector<MemoryAction>;  // one per block

// Runs one step, forward and backward, under these actions, and puts back what it changed.
using TrialPass = std::function<Result<StepReading>(const Actions&)>;

class StorageLevels;

struct TrialSettings {
  ActionSet actions = only(MemoryAction::keep);  // that may be tried
  std::int64_t budget_bytes = 0;                 // for the slices; 0 keeps all blocks at once
  std::int64_t copy_bytes_per_ms = 0;            // of the tier that offload uses
  const StorageLevels* levels = nullptr;         // of recompute; null where there are none
  // Whether the passes so far had tiles, so that dropping them can be tried; empty = they had.
  std::function<bool()> has_tiles = {};
  // Returns the highest level that other steps of the loop reach under these actions; empty where
  // all steps are alike.
  std::function<Result<std::int64_t>(const Actions&)> other_peak = {};
};

// Measures the problem of this rank. Returns the first error of `pass`, and failed_precondition
// when the step is no chain of blocks.
Result<MemoryProblem> measure_problem(std::size_t blocks, const TrialSettings& settings,
                                      const TrialPass& pass);

}  // namespace cox::detail
