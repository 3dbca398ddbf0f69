// Saved-tensor hooks without Python. Autograd asks its engine for hooks whenever it saves a tensor
// for backward; our engine answers from the innermost SavedTensorFrame of the calling thread, or
// with none. Measuring, recompute, offload and the tape are frames. Without a frame a save costs
// one branch. While the engine runs a backward pass, no operator of that pass is seen by the
// operator stream of its thread. A frame belongs to the thread that opened it; hooks run on
// whatever thread runs backward.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::detail {

// Says where a tile's saved tensors are dropped: where the plan tiles its block, or wherever
// nothing larger is recomputed.
enum class TileDrop : std::uint8_t { where_planned, always };

class SavedTensorFrame {
 public:
  virtual ~SavedTensorFrame() = default;
  // Makes the hooks of one saved tensor; called once for each tensor saved under the frame. Null
  // leaves that tensor to autograd.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
  // Tensors of this storage stay what autograd saved, whatever the frame does with others.
  virtual void leave_alone(const c10::StorageImpl* /*storage*/) noexcept {}
  // Ends the call under the frame, also one that threw, on its thread and after its scope.
  virtual void leave() noexcept {}

  // Between begin_tile() and end_tile() a tile of that name is computed (coxswain/tile.h). Returns
  // whether what is saved in it is dropped and made again in backward; only then end_tile() is
  // called. Tiles do not nest.
  virtual bool begin_tile(std::string_view /*name*/, TileDrop) { return false; }
  virtual void end_tile() noexcept {}

  // What is computed from here on belongs to the block of that name, until end_block()
  // (coxswain/block.h). Returns whether blocks are followed here; only then end_block() is called.
  // Throws cox::Error for a name that no block has. They nest.
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

// Makes our engine the one of the process; a second call is a no-op. Returns failed_precondition
// when another engine than torch's own is there. REQUIRES: no backward() has run yet.
Status install_saved_tensor_engine();

// Returns how many backward passes of this process ran on threads whose operators nobody sees. Any
// thread may call it.
std::uint64_t backward_passes_elsewhere();

// Returns ok while our engine is in force, else failed_precondition.
Status check_saved_tensor_engine();

}  // namespace cox::detail
