#include "sdk/src/memory/offload_hooks.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <sstream>
#include <utility>

#include "coxswain/error.h"

namespace cox::detail {

OffloadHooks::OffloadHooks(std::shared_ptr<OffloadFrame> frame) : frame_(std::move(frame)) {}

OffloadHooks::~OffloadHooks() {
  if (away_) frame_->store_->drop(*away_);
}

void OffloadHooks::call_pack_hook(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = counter_->current_version();
  }
  away_ = frame_->save(tensor);
  if (!away_) {
    // With its history it would be a cycle; a leaf that takes a gradient has none.
    kept_ = tensor.is_leaf() && tensor.requires_grad() ? tensor : tensor.detach();
    return;
  }
  shape_ = {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.dtype()};
}

at::Tensor OffloadHooks::call_unpack_hook() {
  check_version();
  if (!away_) return kept_;
  Result<c10::Storage> storage = frame_->store_->take(*away_);
  if (storage.ok()) return rebuilt(std::move(*storage));
  throw Error(
      storage.status().with_context("block " + frame_->block() +
                                    ": a tensor that its backward pass needs was moved out of "
                                    "memory and cannot be read again"));
}

void OffloadHooks::check_version() const {
  if (!counter_ || counter_->current_version() == version_) return;
  std::ostringstream text;
  text << "block " << frame_->block() << ": a tensor of sizes "
       << (away_ ? at::IntArrayRef(shape_.sizes) : kept_.sizes())
       << " that its backward pass needs was changed in place; expected version " << version_
       << ", found " << counter_->current_version()
       << "; use an operation that is not in place, or clone the tensor first";
  throw Error(failed_precondition(text.str()));
}

at::Tensor OffloadHooks::rebuilt(c10::Storage storage) const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), shape_.type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape_.sizes, shape_.strides, shape_.offset);
  return tensor;
}

}  // namespace cox::detail
