// Saved-tensor hooks without Python. Autograd asks its engine for hooks whenever it saves a tensor
// for backward; our engine answers from the innermost SavedTensorFrame of the calling thread, or
// with none. Measuring, recompute and offload are frames; SavedBytesFrame, which only measures, is
// declared here. Without a frame a save costs one branch. A frame belongs to the thread that opened
// it; hooks run on whatever thread runs backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "coordinator/core/status.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

class SavedTensorFrame {
 public:
  virtual ~SavedTensorFrame() = default;
  // Makes the hooks of one saved tensor; called once for each tensor saved under the frame. Null
  // leaves that tensor to autograd.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
  // Returns the frame that decides what becomes of the tensors: this one, unless it only measures.
  virtual SavedTensorFrame* deciding() { return this; }
  // Ends the call under the frame, also one that threw, on its thread and after its scope.
  virtual void leave() noexcept {}
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
};

// Makes our engine the one of the process; a second call is a no-op. Returns failed_precondition
// when another engine than torch's own is there. REQUIRES: no backward() has run yet.
Status install_saved_tensor_engine();

// Returns ok while our engine is in force, else failed_precondition.
Status check_saved_tensor_engine();

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

}  // namespace cox::detail
