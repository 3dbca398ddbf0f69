// The memory behind a tensor: views share it, so bytes are counted per storage. Tensors without one
// storage (sparse, undefined) count as themselves with no bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cox::detail {

inline const void* storage_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor.unsafeGetTensorImpl();
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

inline std::uint64_t storage_bytes(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() : 0;
}

}  // namespace cox::detail
