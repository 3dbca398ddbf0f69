// SavedBytesFrame: counts what autograd saves for backward inside one call of a block, each storage
// once, without parameters and buffers. Bytes count for the enclosing calls too. Since hooks switch
// off autograd's own check, the hooks compare the version of each tensor and name the block on a
// mismatch. Where another frame decides what becomes of the tensors (recompute, offload), its hooks
// are called instead, and the bytes are those that keep would keep. One thread opens, counts and
// closes; the hooks keep the frame until backward is over.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "sdk/src/blocks/saved_tensor_engine.h"

namespace cox::detail {

class SavedBytesFrame final : public SavedTensorFrame,
                              public std::enable_shared_from_this<SavedBytesFrame> {
 public:
  // `outer`: of the enclosing call, or null.
  SavedBytesFrame(std::string block, const torch::nn::Module& module,
                  std::shared_ptr<SavedBytesFrame> outer);

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  SavedTensorFrame* deciding() override { return below_; }
  void count(const at::Tensor& tensor);
  // The bytes counted; the frame counts no more.
  std::uint64_t close();
  const std::string& block() const { return block_; }

 private:
  bool first_sight(const at::Tensor& tensor);

  std::string block_;
  std::shared_ptr<SavedBytesFrame> outer_;
  SavedTensorFrame* below_;  // decides; nullptr where nobody else does. Used while this is open
  // Storages, those of parameters and buffers from the start.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> seen_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cox::detail
