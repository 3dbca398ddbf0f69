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
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/core/hash.h"
#include "sdk/src/blocks/block_state.h"
#include "sdk/src/stream/saved_tensors.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

// SavedBytesFrame counts what autograd saves for backward inside one call of a block: each storage
// once, without parameters and buffers. Bytes also count for the enclosing calls. Since hooks
// switch off autograd's own check, its hooks compare the version of each tensor and name the block
// on a mismatch. Where another frame decides what becomes of the tensors (recompute, offload), its
// hooks are called instead, and the bytes are those that the action keep would keep. One thread
// opens the frame, counts and closes it; the hooks own it until backward is over.
class SavedBytesFrame final : public SavedTensorFrame,
                              public std::enable_shared_from_this<SavedBytesFrame> {
 public:
  // `outer` is the frame of the enclosing call, or null.
  SavedBytesFrame(std::string block, const torch::nn::Module& module,
                  std::shared_ptr<SavedBytesFrame> outer);

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  SavedTensorFrame* deciding() override { return below_; }
  void count(const at::Tensor& tensor);
  // Returns the bytes counted; the frame counts no more.
  std::uint64_t close();
  const std::string& block() const { return block_; }

 private:
  // Returns whether the storage was not there yet.
  bool add_storage(const at::Tensor& tensor);

  std::string block_;
  std::shared_ptr<SavedBytesFrame> outer_;
  SavedTensorFrame* below_;  // decides; null where no other frame does. Used until close()
  // Storages that were seen; those of parameters and buffers are in it from the start.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> seen_;
  std::uint64_t bytes_ = 0;
};

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
