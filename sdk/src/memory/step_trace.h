// StepTrace: one training step as counted bytes at the edges of its blocks, and what that says of
// every stage of the step. Recorded in a trial before the first step (memory_trial.h); the
// readings of several trials make a MemoryProblem. Values and pure functions, but for the
// recorder, which is filled by the thread that trains and, in backward, by an engine's thread while
// that one waits.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/memory/counting_allocator.h"

namespace cox::detail {

struct TraceEvent {
  BlockId block{};
  BlockEdge edge = BlockEdge::forward_begin;
  Nanoseconds time{};
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;   // most since the event before
  std::int64_t moved_bytes = 0;  // offloaded so far
};

struct StepTrace {
  Nanoseconds start{};
  std::int64_t start_bytes = 0;  // live before the forward pass
  std::vector<TraceEvent> events;
  Nanoseconds end{};
  std::int64_t end_peak_bytes = 0;  // most since the last event
};

// Reads the counted memory at each edge. Requires: the counting allocator is installed.
class TraceRecorder {
 public:
  // `moved`: bytes offloaded so far; may be empty.
  void start(Nanoseconds now, std::function<std::int64_t()> moved);
  void note(BlockId block, BlockEdge edge, Nanoseconds now) noexcept;
  StepTrace finish(Nanoseconds now);

 private:
  std::mutex mutex_;
  StepTrace trace_;
  std::function<std::int64_t()> moved_;
  bool running_ = false;
};

// What one stage took, relative to the level at its beginning. Stages are, in order: what comes
// before the first block, each block with what follows it up to the next, and what comes after the
// last block (head and loss, with their backward pass).
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
  std::vector<StageReading> stages;  // blocks + 2
  std::int64_t step_us = 0;
};

// failed_precondition when the blocks 0 .. blocks-1 did not run once each, in that order, and
// backward in reverse: then no chain describes the step, and there is nothing to plan.
Result<StepReading> read_stages(const StepTrace& trace, std::size_t blocks);

// The highest level that a step with these stages reaches.
std::int64_t peak_bytes(const StepReading& reading);

}  // namespace cox::detail
