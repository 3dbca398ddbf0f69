// SampleTrial measures a calibration's sample step on this rank under each memory action.
//
//   measure_regions() -> choose_levels() -> measure() -> MemoryProblem
//
// Between the first two, ranks may agree on the regions (memory_agreement.h). Runs leave no trace
// in the model, but leave blocks under the actions of the last run. Does not communicate. Training
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "coordinator/core/log.h"
#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/blocks/steered_region.h"
#include "sdk/src/memory/memory_trial.h"
#include "sdk/src/memory/offload.h"
#include "sdk/src/memory/storage_levels.h"
#include "sdk/src/memory/tensor_memory.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/precision/trial_pass.h"

namespace cox::detail {

// Parts of this rank used by runs; all outlive the trial.
struct TrialParts {
  BlockWatch& blocks;
  TensorMemory memory{};           // the model's tensors
  Offloader* offloader = nullptr;  // null without offloading
  Log log{};
};

// The step to run, and the memory that a job's step holds in addition.
struct TrialSample {
  const SampleStep& step;  // outlives the trial
  GradientHolding held{};
  // Drops state that a run keeps for its step (quantised weights), so that each run begins like a
  // step; may be empty.
  std::function<void()> forget_run{};
};

class SampleTrial {
 public:
  // Uses the actions and the budget of `settings`; the other settings follow from the parts.
  SampleTrial(TrialParts parts, TrialSettings settings, TrialSample sample);
  SampleTrial(const SampleTrial&) = delete;
  SampleTrial& operator=(const SampleTrial&) = delete;

  // Returns whether the sample has a loss. A rank without samples has none.
  bool can_run() const { return sample_.step.loss != nullptr; }

  // Returns the operators of every block, from runs that recompute all blocks. A block that did not
  // run has none.
  MeasuredRegions measure_regions();
  // Chooses the blocks' levels of recompute from the regions. Without a call there are no levels.
  void choose_levels(const MeasuredRegions& regions);
  // Errors: the step is no chain of blocks, throws, or has other gradients under an action.
  // REQUIRES: can_run().
  Result<MemoryProblem> measure();

 private:
  VisitParts& visits() { return parts_.blocks.visits()->parts(); }
  Actions recomputed() const { return Actions(parts_.blocks.size(), MemoryAction::recompute); }
  void begin_run(const Actions& actions);
  Result<MemoryProblem> measure_once();
  Result<StepReading> traced(TrialStep& step);
  // Returns the highest level of the loop's other steps under the actions.
  Result<std::int64_t> peak_of_others(const Actions& actions);
  bool learn_spread();
  bool pin_unequal();
  // Returns the gradients of a run under the actions; nothing if the run fails.
  GradientPrints gradients_under(const Actions& actions);

  const TrialParts parts_;
  const TrialSample sample_;
  TrialSettings settings_;
  std::optional<StorageLevels> levels_;
  GradientSpread spread_;  // between equal runs of the step
};

}  // namespace cox::detail
