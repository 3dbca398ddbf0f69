// BlockCall is one observed call of a block, from its inputs to the end of its backward pass. The
// Observation of the call owns it first, then the hooks on its tensors do, so it lives as long as
// its graph; it holds no tensor afterwards. Backward begins with the first gradient of an output
// and ends with the last gradient of a differentiable input, else of the parameters, else with the
// whole backward pass. Only the first backward pass over a graph is measured. The thread that
// trains runs the forward part; backward events may come from an engine's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/core/hash.h"
#include "sdk/src/blocks/block_state.h"
#include "sdk/src/blocks/saved_bytes.h"

namespace cox::detail {

// Makes `call` the innermost observed call of this thread, until its function returns or throws.
// Calls of blocks that nobody observes do not appear.
class RunningBlockScope {
 public:
  explicit RunningBlockScope(BlockCall& call);
  ~RunningBlockScope();
  RunningBlockScope(const RunningBlockScope&) = delete;
  RunningBlockScope& operator=(const RunningBlockScope&) = delete;
};

BlockCall* innermost_block_call();  // null outside of all

class BlockCall : public std::enable_shared_from_this<BlockCall> {
 public:
  explicit BlockCall(std::shared_ptr<BlockState> state);
  ~BlockCall();

  void add_input(const at::Tensor& tensor);
  void arrive();           // before the memory action takes copies for the block
  void enter();            // before the block's function
  void leave() noexcept;   // after it, also when it threw
  void measure_forward();  // after leave()
  void add_output(const at::Tensor& tensor);
  // Reports at once, unless a backward pass can come.
  void finish_forward();

  void backward_began() noexcept;
  void backward_ended() noexcept;
  // Returns whether this is the end of a pass that is being measured.
  bool note_backward_end() noexcept;
  // Reports; later calls do nothing.
  void finish() noexcept;

  const BlockState& state() const { return *state_; }
  bool is_outermost() const { return !measurement_.inside; }
  const std::shared_ptr<SavedBytesFrame>& saved_frame() const { return saved_; }

 private:
  // Returns whether the storage was not there yet.
  bool add_storage(const at::Tensor& tensor);
  void edge(BlockEdge edge) noexcept;

  const std::shared_ptr<BlockState> state_;
  const BlockClock now_;
  BlockMeasurement measurement_;
  Nanoseconds forward_begin_{};

  // Used during the forward pass only.
  Fnv1a64 shapes_;  // of the inputs
  std::vector<const void*> storages_;
  std::shared_ptr<SavedBytesFrame> saved_;
  std::optional<RunningBlockScope> running_;
  std::optional<SavedTensorScope> saving_;

  bool ends_with_input_ = false;  // a hook on an input tells the end of backward
  bool has_backward_ = false;
  std::mutex mutex_;
  std::optional<Nanoseconds> backward_begin_;
  std::optional<Nanoseconds> backward_end_;
  bool reported_ = true;  // false from the end of forward until the report
};

}  // namespace cox::detail
