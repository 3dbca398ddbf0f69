// BlockCall: one observed call of a block, from its inputs to the end of its backward pass. Held by
// the call itself, then by the hooks on its tensors, so it lives as long as its graph; it holds no
// tensor afterwards. Backward begins with the first gradient of an output and ends with the last
// gradient of a differentiable input, else of the parameters, else with the whole backward pass.
// Only the first backward pass over a graph is measured. Backward events may come from an engine's
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "sdk/src/blocks/block_state.h"
#include "sdk/src/blocks/running_blocks.h"
#include "sdk/src/blocks/saved_bytes.h"

namespace cox::detail {

class BlockCall : public std::enable_shared_from_this<BlockCall> {
 public:
  explicit BlockCall(std::shared_ptr<BlockState> state);
  ~BlockCall();

  void add_input(const at::Tensor& tensor);
  void arrive();           // before what the memory action keeps for the block
  void enter();            // before the block's function
  void leave() noexcept;   // after it, also when it threw
  void measure_forward();  // after leave()
  void add_output(const at::Tensor& tensor);
  void finish_forward();  // reports now unless a backward pass can come

  void backward_began() noexcept;
  void backward_ended() noexcept;
  bool note_backward_end() noexcept;  // whether it is one of a pass that is being measured
  void finish() noexcept;             // reports, once

  const BlockState& state() const { return *state_; }
  bool is_outermost() const { return !measurement_.inside; }
  const std::shared_ptr<SavedBytesFrame>& saved_frame() const { return saved_; }

 private:
  bool first_sight(const at::Tensor& tensor);
  void edge(BlockEdge edge) noexcept;

  const std::shared_ptr<BlockState> state_;
  const BlockClock now_;
  BlockMeasurement measurement_;
  Nanoseconds forward_begin_{};

  // In use during the forward pass only.
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
