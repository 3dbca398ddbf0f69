// VisitWatch measures what the blocks of an adopted model take, where the operator stream tells
// only that the forward pass went over from one block to another. A block may be visited several
// times in a step, or not at all; its times and bytes are sums over the step.
//
// Forward time is the time between the first operator on a parameter of the block and the first on
// one of another block. Backward time goes to the block whose saved tensors autograd asked for
// last, so that operators which saved nothing count for the block that came before them in the
// backward pass. A storage that several blocks save counts for the first.
//
// The training thread calls everything but unpack(), which comes from whatever thread runs
// backward. Hooks on saved tensors share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sdk/src/blocks/measurement.h"
#include "sdk/src/stream/saved_tensors.h"

namespace cox::detail {

class VisitWatch final : public SavedTensorFrame, public std::enable_shared_from_this<VisitWatch> {
 public:
  using Clock = Nanoseconds (*)();  // monotonic
  VisitWatch(BlockSink& sink, Clock clock) : sink_(&sink), now_(clock) {}

  // Adds a block with that many elements of parameters; blocks are numbered from 0.
  void add_block(std::uint64_t elements) { seen_.push_back({.elements = elements}); }
  // What is measured from here on. Called between steps.
  void measure(MeasureMode mode) { mode_ = mode; }
  // Nothing is reported any more.
  void release();

  // The forward pass is in `block` from here on, or, after leave_block(), in none.
  void enter(BlockId block);
  void leave_block();
  std::optional<BlockId> current() const { return current_; }

  void backward_begins();
  void backward_ended();
  // Reports every block that was visited since the last call, and forgets it.
  void end_step();

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

 private:
  class Hooks;
  struct Seen {
    std::uint64_t elements = 0;
    bool is_visited = false;
    Nanoseconds forward{};
    Nanoseconds backward{};
    std::uint64_t saved_bytes = 0;
  };

  void count(BlockId block, const at::Tensor& tensor);
  void unpack(BlockId block) noexcept;
  void book_backward(Nanoseconds now);

  BlockSink* sink_;
  const Clock now_;
  MeasureMode mode_ = MeasureMode::off;
  std::optional<BlockId> current_;
  Nanoseconds since_{};
  // Storages saved since backward ran last; a weak reference keeps an address from being used
  // again.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;

  std::mutex mutex_;  // guards the following
  std::vector<Seen> seen_;
  bool is_backward_ = false;
  std::optional<BlockId> backward_in_;
  Nanoseconds backward_since_{};
};

}  // namespace cox::detail
