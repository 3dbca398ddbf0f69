// The memory trial finds out, before the first step, what every stage of a step costs under every
// memory action. A session runs the step a few times on a sample batch, a TraceRecorder reads the
// counted bytes at the edges of blocks, and measure_problem() makes a MemoryProblem of the
// readings; gather_problems() brings those of all ranks to rank 0, where the planner solves them.
//
// The trial first recomputes everything, which takes the least memory; then it keeps blocks in as
// many slices as the budget asks for, so that it stays within the budget itself where a plan can;
// then it offloads them. Stages do not depend on each other's actions, so any mix can be predicted
// from these passes. Values and functions of the training thread; in backward an engine's thread
// fills the recorder while that one waits. Only gather_problems() communicates.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/planner/memory_problem.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/memory/tensor_memory.h"

namespace cox::detail {

struct TraceEvent {
  BlockId block{};
  BlockEdge edge = BlockEdge::forward_begin;
  Nanoseconds time{};
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;   // since the event before
  std::int64_t moved_bytes = 0;  // offloaded so far
};

// StepTrace is one training step as counted bytes at the edges of its blocks.
struct StepTrace {
  Nanoseconds start{};
  std::int64_t start_bytes = 0;  // live before the forward pass
  std::vector<TraceEvent> events;
  Nanoseconds end{};
  std::int64_t end_peak_bytes = 0;  // since the last event
};

// TraceRecorder reads the counted memory at each edge. REQUIRES: memory.is_counted().
class TraceRecorder {
 public:
  explicit TraceRecorder(TensorMemory memory = TensorMemory()) : memory_(memory) {}
  // `moved` returns the bytes offloaded so far; it may be empty.
  void start(Nanoseconds now, std::function<std::int64_t()> moved);
  void note(BlockId block, BlockEdge edge, Nanoseconds now) noexcept;
  StepTrace finish(Nanoseconds now);

 private:
  const TensorMemory memory_;
  std::mutex mutex_;
  StepTrace trace_;
  std::function<std::int64_t()> moved_;
  bool running_ = false;
};

// StageReading is what one stage took, relative to the level at its beginning. Stages are, in
// order: the part before the first block, each block with the part between it and the next one, and
// the part after the last block (head and loss, with their backward pass).
struct StageReading {
  std::int64_t kept_bytes = 0;
  std::int64_t forward_high_bytes = 0;
  std::int64_t backward_high_bytes = 0;
  std::int64_t forward_us = 0;
  std::int64_t backward_us = 0;
  std::int64_t copied_bytes = 0;  // to the tier of offload
};

struct StepReading {
  std::int64_t start_bytes = 0;
  std::int64_t peak_bytes = 0;       // the highest level that was counted
  std::vector<std::size_t> order;    // the blocks that ran both ways, as they ran forward
  std::vector<StageReading> stages;  // of those blocks, in that order, + 2
};

// Returns failed_precondition when a block ran twice, or when backward did not run them in reverse:
// then no chain describes the step, and there is nothing to plan. A block that backward asks for
// nothing is part of the stage that runs before it. REQUIRES: the trace's blocks are below
// `blocks`.
Result<StepReading> read_stages(const StepTrace& trace, std::size_t blocks);

using Actions = std::vector<MemoryAction>;  // one per block

// Runs one step, forward and backward, under these actions, and puts back what it changed.
using TrialPass = std::function<Result<StepReading>(const Actions&)>;

class StorageLevels;

struct TrialSettings {
  ActionSet actions = only(MemoryAction::keep);  // that may be tried
  std::int64_t budget_bytes = 0;                 // for the slices; 0 keeps all blocks at once
  std::int64_t copy_bytes_per_ms = 0;            // of the tier that offload uses
  StorageLevels* levels = nullptr;               // of recompute; null where there are none
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

// Brings the problems of all ranks together: returns one entry per rank on rank 0, nothing on the
// others. Collective; blocks by polling. REQUIRES: no round has begun.
Result<std::vector<planner::RankProblem>> gather_problems(transport::Communicator& ranks,
                                                          const planner::RankProblem& mine);

}  // namespace cox::detail
