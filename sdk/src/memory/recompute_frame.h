// RecomputeFrame: the saved tensors of one call that runs again instead of keeping them. Tensors
// saved under it are noted in order and dropped; the first one that backward asks for makes the
// function run again, only as far as its last saved tensor, and each is handed out once, so memory
// falls as backward goes on. Asked for again (retain_graph, create_graph), the function runs again.
//
// Leaves that require gradients stay as they are. A frame may hold what is saved instead, to
// compare it with a second run (check) and then to drop it or to go on holding it. Owned by the
// hooks on the saved tensors; those run on whatever thread runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/detail/rerun.h"
#include "sdk/src/blocks/saved_tensor_engine.h"
#include "sdk/src/memory/recompute_buffers.h"
#include "sdk/src/memory/recompute_recorder.h"
#include "sdk/src/memory/recompute_state.h"

namespace cox::detail {

class BlockState;

// A call and all that it takes to make it again.
struct RecomputeParts {
  std::string name;                   // in messages: "block transformer.h.0"
  std::shared_ptr<BlockState> state;  // pinned when running again fails; nullptr outside of blocks
  std::unique_ptr<Rerun> again;
  ExecutionState execution;
  TensorVersions versions;
  BufferCopies buffers;
};

class RecomputeFrame final : public SavedTensorFrame,
                             public std::enable_shared_from_this<RecomputeFrame> {
 public:
  enum class Mode { dropping, holding };

  RecomputeFrame(RecomputeParts parts, Mode mode) : parts_(std::move(parts)), mode_(mode) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

  // The forward pass is over. Requires: holding. Runs the function again and compares what it saves
  // with what is held, bit for bit; leaves no trace. `edited`: the buffers that the function edits.
  // Returns the difference as a sentence, or nothing.
  std::optional<std::string> check(BufferCopies edited);
  void drop_held();  // holding becomes dropping

  // For the hooks.
  std::size_t add(const at::Tensor& tensor, bool is_leaf);
  at::Tensor unpack(std::size_t index);
  void release(std::size_t index);
  [[noreturn]] void fail_changed(const at::Tensor& tensor, std::int64_t expected) const;

 private:
  struct Slot {
    SavedShape shape;
    at::Tensor tensor;
    std::int64_t version = 0;
    bool is_leaf = false;
    bool is_released = false;
  };
  void recompute();
  void run_again(Recorder& recorder);
  std::string difference(const std::vector<Recorder::Saved>& found) const;
  void check_versions() const;
  [[noreturn]] void fail(const std::string& what) const;

  RecomputeParts parts_;
  Mode mode_;
  std::recursive_mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace cox::detail
