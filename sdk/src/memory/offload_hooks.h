// OffloadHooks: one saved tensor of an offloaded call. It holds a place in the OffloadStore and the
// shape to see it in, or the tensor itself when that is left alone. Since hooks switch off
// autograd's own check, it compares the version of the tensor and names the block on a mismatch.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sdk/src/memory/offload.h"

namespace cox::detail {

class OffloadHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit OffloadHooks(std::shared_ptr<OffloadFrame> frame);
  OffloadHooks(const OffloadHooks&) = delete;
  OffloadHooks& operator=(const OffloadHooks&) = delete;
  ~OffloadHooks() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;

 private:
  // How to see a storage as the tensor that was saved.
  struct Shape {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset = 0;
    caffe2::TypeMeta type;
  };

  void check_version() const;
  at::Tensor rebuilt(c10::Storage storage) const;

  const std::shared_ptr<OffloadFrame> frame_;
  at::Tensor kept_;
  std::optional<StorageHolder> away_;
  Shape shape_;
  std::optional<c10::VariableVersion> counter_;  // of the tensor, without its memory
  std::uint32_t version_ = 0;
};

}  // namespace cox::detail
