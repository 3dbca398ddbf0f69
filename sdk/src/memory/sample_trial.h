// SampleTrial measures on this rank what the sample step of a calibration takes under each memory
// action.
//
//   measure_regions() -> choose_levels() -> measure() -> MemoryProblem
//
// Between the first two, ranks may agree on the regions (memory_agreement.h). Runs leave no trace
// in the model, and blocks under the actions of the last run. Does not communicate. Training
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

// The parts of this rank that runs go through. They outlive the trial.
struct TrialParts {
  BlockWatch& blocks;
  TensorMemory memory{};           // that holds the model's tensors
  Offloader* offloader = nullptr;  // null where nothing can be offloaded
  Log log{};
};

// The step that runs, and what a step of the job holds that a run does not.
struct TrialSample {
  const SampleStep& step;  // outlives the trial
  GradientHolding held{};
  // Drops what a run keeps for the rest of its step (quantised weights), so that each run begins as
  // a step does; may be empty.
  std::function<void()> forget_run{};
};

class SampleTrial {
 public:
  // The actions and the budget of `settings` count; the rest follows from the parts.
  SampleTrial(TrialParts parts, TrialSettings settings, TrialSample sample);
  SampleTrial(const SampleTrial&) = delete;
  SampleTrial& operator=(const SampleTrial&) = delete;

  // Returns whether the sample has a loss; a rank without samples has none.
  bool can_run() const { return sample_.step.loss != nullptr; }

  // Returns the operators of every block, as they were in runs that recompute all blocks; nothing
  // of a block that did not run.
  MeasuredRegions measure_regions();
  // Gives blocks the levels of recompute that follow from these regions. Without a call there are
  // none.
  void choose_levels(const MeasuredRegions& regions);
  // Errors: the step is no chain of blocks, throws, or gives other gradients under some action.
  // REQUIRES: can_run().
  Result<MemoryProblem> measure();

 private:
  VisitParts& visits() { return parts_.blocks.visits()->parts(); }
  Actions recomputed() const { return Actions(parts_.blocks.size(), MemoryAction::recompute); }
  void begin_run(const Actions& actions);
  Result<MemoryProblem> measure_once();
  Result<StepReading> traced(TrialStep& step);
  // Returns the highest level that the loop's other steps reach under these actions.
  Result<std::int64_t> peak_of_others(const Actions& actions);
  bool learn_spread();
  bool pin_unequal();
  // Returns the gradients of a run under these actions; nothing where that fails.
  GradientPrints gradients_under(const Actions& actions);

  const TrialParts parts_;
  const TrialSample sample_;
  TrialSettings settings_;
  std::optional<StorageLevels> levels_;
  GradientSpread spread_;  // of the step, where its runs differ
};

}  // namespace cox::detail
