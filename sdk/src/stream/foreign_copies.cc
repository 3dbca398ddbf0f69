#include "sdk/src/stream/foreign_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/equal.h>

#include <algorithm>

#include "sdk/src/stream/storage.h"

namespace cox::detail {

bool is_foreign_memory(const at::TensorBase& tensor) {
  return tensor.has_storage() && tensor.storage().allocator() == nullptr;
}

// Compares values, because no counter records the program's own writes to foreign memory.
bool ForeignCopies::Copy::is_of(const at::Tensor& tensor) const {
  return storage_impl(original) == storage_impl(tensor) &&
         original.storage_offset() == tensor.storage_offset() &&
         original.scalar_type() == tensor.scalar_type() && original.sizes() == tensor.sizes() &&
         original.strides() == tensor.strides() && at::equal(copy, tensor.detach());
}

at::Tensor ForeignCopies::copy_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto known =
      std::ranges::find_if(copies_, [&](const Copy& each) { return each.is_of(tensor); });
  if (known != copies_.end()) return known->copy;
  bytes_ += tensor.nbytes();
  if (bytes_ > kMostBytes) return {};
  return copies_.emplace_back(Copy{tensor.detach(), tensor.detach().clone()}).copy;
}

void ForeignCopies::clear() {
  copies_.clear();
  bytes_ = 0;
}

}  // namespace cox::detail
