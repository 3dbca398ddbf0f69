// SavedBytesFrame counts what autograd saves for backward inside one call of a block: each storage
// once, without parameters and buffers. Bytes also count for the enclosing calls. Since hooks
// switch off autograd's own check, its hooks compare the version of each tensor and name the block
// on a mismatch. Where another frame decides what becomes of the tensors (recompute, offload), its
// hooks are called instead, and the bytes are those that the action keep would keep. One thread
// opens the frame, counts and closes it; the hooks own it until backward is over.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "sdk/src/stream/saved_tensors.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

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
