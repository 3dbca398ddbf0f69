// Functions about a tensor's memory: the storage and the version. Views share a storage, so bytes
// are counted per storage. A tensor without one storage (sparse, undefined) counts as its own
// storage of no bytes. Pure; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

namespace cox::detail {

inline const void* storage_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor.unsafeGetTensorImpl();
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Returns the tensor's storage; null for a tensor that is undefined or has no storage.
inline const c10::StorageImpl* storage_impl(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

inline std::uint64_t storage_bytes(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() : 0;
}

// Returns whether the tensor is a leaf that requires gradients.
inline bool is_parameter(const at::TensorBase& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}
inline bool is_parameter_or_view(const at::Tensor& tensor) {
  return is_parameter(tensor) || (tensor.is_view() && is_parameter(tensor._base()));
}

// Returns the version counter of the tensor's data; 0 for an inference tensor, which has none.
inline std::int64_t version_of(const at::Tensor& tensor) {
  if (tensor.is_inference()) return 0;
  return static_cast<std::int64_t>(
      tensor.unsafeGetTensorImpl()->version_counter().current_version());
}

// Returns the result of detach(), without a query to the dispatcher.
inline at::Tensor detached(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.is_inference()) return tensor.detach();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

inline at::Tensor without_graph(const at::Tensor& tensor) {
  return is_parameter(tensor) ? tensor : detached(tensor);
}

// Returns whether geometry describes all: strided, and neither conjugated nor negated lazily.
inline bool is_strided_and_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg();
}

// Returns the message about a saved tensor changed in place before its backward pass.
std::string changed_in_place(at::IntArrayRef sizes, std::int64_t expected_version,
                             std::int64_t found_version);

// Calls `use` with every defined tensor in an argument or a result: a tensor, a list of tensors or
// of optional tensors.
template <class Use>
void for_each_tensor_in(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) use(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor()) {
        if (!element.isNone()) return;  // a list of another type
        continue;
      }
      if (element.toTensor().defined()) use(element.toTensor());
    }
  }
}

}  // namespace cox::detail
