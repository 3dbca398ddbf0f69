// A step trace holds the counted bytes of one training step at the edges of its blocks.
// read_stages() computes from the trace what every stage of the step took.
//
//   edges of blocks -> TraceRecorder -> StepTrace -> read_stages() -> StepReading
//
// Values and a pure function. An engine's thread fills the recorder in backward, while the training
// thread waits.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
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
  // `moved` returns the bytes offloaded so far, and may be empty.
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

// StageReading is the cost of one stage, relative to the level at its beginning. Stages are, in
// order:
// - the part before the first block;
// - each block, with the parts between its visits and the next ones;
// - the part after the last block: head and loss, with their backward pass.
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
  std::int64_t peak_bytes = 0;       // the highest counted level
  std::vector<std::size_t> order;    // blocks that ran both ways, in forward's order
  std::vector<StageReading> stages;  // one for each block of `order`, + 2
  bool has_repeats = false;          // a block was visited more than once
};

// Returns the error of a step that is no chain of blocks. `found`: "found none".
Status no_chain(const std::string& found);

// Returns failed_precondition if backward did not run the visits of blocks in reverse: the step is
// no chain, and nothing can be planned. The visits of a block are one stage, with the sum of their
// bytes and times. A visit unused by backward belongs to the stage before it. REQUIRES: the trace's
// blocks are below `blocks`.
Result<StepReading> read_stages(const StepTrace& trace, std::size_t blocks);

}  // namespace cox::detail
