// A chain of blocks with made-up bytes. Writes the trace of a real step under given actions, and
// knows the true peak.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "sdk/src/memory/step_trace.h"

namespace cox::test {

struct SyntheticBlock {
  std::int64_t interior = 0;  // held by keep beside the input
  std::int64_t output = 0;
  std::int64_t scratch = 0;   // during either pass
  std::int64_t gradient = 0;  // the parameters' gradients, from the block's backward on
};

class SyntheticStep {
 public:
  SyntheticStep(std::int64_t base, std::vector<SyntheticBlock> blocks, std::int64_t head)
      : base_(base), head_(head), blocks_(std::move(blocks)) {}

  std::size_t blocks() const { return blocks_.size(); }

  detail::StepTrace trace(const std::vector<MemoryAction>& actions) {
    trace_ = {};
    live_ = peak_ = true_peak_ = base_;
    trace_.start_bytes = base_;
    grow(100);  // the first block's input
    for (std::size_t b = 0; b < blocks_.size(); ++b) forward(b, actions[b]);
    grow(head_);
    grow(-head_);
    for (std::size_t b = blocks_.size(); b-- > 0;) backward(b, actions[b]);
    grow(-100);
    trace_.end = now_;
    trace_.end_peak_bytes = peak_;
    return trace_;
  }
  std::int64_t true_peak() const { return true_peak_; }

 private:
  void grow(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    true_peak_ = std::max(true_peak_, live_);
  }
  void edge(std::size_t block, detail::BlockEdge edge) {
    now_ += Nanoseconds(1000);
    trace_.events.push_back({BlockId(static_cast<BlockId::rep>(block)), edge, now_, live_, peak_});
    peak_ = live_;
  }
  void forward(std::size_t b, MemoryAction action) {
    const SyntheticBlock& block = blocks_[b];
    edge(b, detail::BlockEdge::forward_begin);
    grow(block.interior + block.scratch);
    grow(block.output);
    grow(-block.scratch);
    if (action == MemoryAction::recompute) grow(-block.interior);
    edge(b, detail::BlockEdge::forward_end);
  }
  void backward(std::size_t b, MemoryAction action) {
    const SyntheticBlock& block = blocks_[b];
    edge(b, detail::BlockEdge::backward_begin);
    if (action == MemoryAction::recompute) grow(block.interior);
    grow(block.scratch + block.gradient);
    grow(-block.scratch - block.interior - block.output);
    edge(b, detail::BlockEdge::backward_end);
  }

  std::int64_t base_;
  std::int64_t head_;
  std::vector<SyntheticBlock> blocks_;
  detail::StepTrace trace_;
  Nanoseconds now_{};
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t true_peak_ = 0;
};

}  // namespace cox::test
