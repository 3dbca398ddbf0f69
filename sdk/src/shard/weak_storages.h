// WeakStorages notes something of storages for as long as they live. It keeps no memory alive, and
// a new storage at the address of a dead one is unknown. Training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <unordered_map>
#include <utility>

#include "sdk/src/stream/storage.h"

namespace cox::detail {

template <class Value>
class WeakStorages {
 public:
  bool is_empty() const { return noted_.empty(); }
  // Returns what is noted of the tensor's storage, or null.
  Value* find(const at::Tensor& tensor) {
    if (noted_.empty()) return nullptr;
    const auto found = noted_.find(storage_impl(tensor));
    if (found == noted_.end()) return nullptr;
    if (!found->second.storage.expired()) return &found->second.value;
    noted_.erase(found);
    return nullptr;
  }
  // REQUIRES: the tensor has a storage.
  Value& note(const at::Tensor& tensor, Value value) {
    if (noted_.size() >= next_sweep_) sweep();
    Noted noted{tensor.storage().getWeakStorageImpl(), std::move(value)};
    return noted_.insert_or_assign(storage_impl(tensor), std::move(noted)).first->second.value;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Noted {
    Weak storage;
    Value value;
  };

  void sweep() {
    std::erase_if(noted_, [](const auto& each) { return each.second.storage.expired(); });
    next_sweep_ = 2 * noted_.size() + 1024;
  }

  std::unordered_map<const c10::StorageImpl*, Noted> noted_;
  std::size_t next_sweep_ = 1024;
};

}  // namespace cox::detail
