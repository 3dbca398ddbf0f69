// Saved-tensor hooks without Python. Autograd asks its engine for hooks when saving a tensor for
// backward; our engine delegates to the innermost SavedTensorFrame of the calling thread.
// Measuring, recompute, offload and the tape are frames. Without a frame a save costs one branch.
// The operator stream never shows operators of a running backward pass. A frame belongs to the
// thread that opened it; hooks run on the thread that runs backward.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::detail {

// Selects where a tile's saved tensors are dropped: only in blocks tiled by the plan, or wherever
// no larger region is recomputed.
enum class TileDrop : std::uint8_t { where_planned, always };

class SavedTensorFrame {
 public:
  virtual ~SavedTensorFrame() = default;
  // Makes the hooks of one saved tensor. Called once for each tensor saved under the frame. Null
  // leaves the tensor to autograd.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
  // Leaves saved tensors of this storage to autograd.
  virtual void leave_alone(const c10::StorageImpl* /*storage*/) noexcept {}
  // Ends the call under the frame, also after a throw, on its thread and after its scope.
  virtual void leave() noexcept {}

  // Begins a tile of this name (coxswain/tile.h), which lasts until end_tile(). Returns whether the
  // tile's saved tensors are dropped and made again in backward. end_tile() follows only a true.
  // Tiles do not nest.
  virtual bool begin_tile(std::string_view /*name*/, TileDrop) { return false; }
  virtual void end_tile() noexcept {}

  // Begins work of the block of this name (coxswain/block.h), which lasts until end_block().
  // Returns whether the frame follows blocks. end_block() follows only a true. Blocks nest. Throws
  // cox::Error for an unknown name.
  virtual bool begin_block(std::string_view /*name*/) { return false; }
  virtual void end_block() noexcept {}
};

// Returns the innermost frame of this thread, or null.
SavedTensorFrame* innermost_frame();

// Makes `frame` the innermost one of this thread. REQUIRES: scopes end in the reverse order of
// their beginning, and the frame outlives the scope.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorFrame& frame);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorFrame* const outer_;
};

// Makes our engine the process's engine; a second call is a no-op. Returns failed_precondition if
// the current engine is neither torch's nor ours. REQUIRES: no backward() has run yet.
Status install_saved_tensor_engine();

// Returns how many backward passes of this process ran on threads without an operator stream. Any
// thread.
std::uint64_t backward_passes_elsewhere();

// Returns ok while our engine is in force, else failed_precondition.
Status check_saved_tensor_engine();

}  // namespace cox::detail
