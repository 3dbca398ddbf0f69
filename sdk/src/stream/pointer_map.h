// PointerMap is a hash table from addresses to small values, with all entries in one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/core/split_mix.h"

namespace cox::detail {

// Addresses are only added or all cleared, so adding one needs no allocation of its own. A plain
// value. `Value` is small; Value() means that the map has nothing for the address.
template <class Value>
class PointerMap {
 public:
  // Returns the value of `key`, or null.
  Value* find(const void* key) {
    return const_cast<Value*>(static_cast<const PointerMap*>(this)->find(key));
  }
  const Value* find(const void* key) const {
    if (slots_.empty() || key == nullptr) return nullptr;
    const Slot& slot = slots_[place_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  // Returns the value of `key`, Value() for a new key. REQUIRES: key is not null.
  Value& operator[](const void* key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place_of(key)];
    if (slot.key == nullptr) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }
  // Keeps the memory.
  void clear() {
    if (size_ > 0) slots_.assign(slots_.size(), {});
    size_ = 0;
  }
  template <class Use>
  void for_each(const Use& use) {
    for (Slot& slot : slots_) {
      if (slot.key != nullptr) use(slot.key, slot.value);
    }
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kLeast = 32;
  struct Slot {
    const void* key = nullptr;
    Value value{};
  };

  // Returns the key's slot, or the free slot for a new key. REQUIRES: some slot is free.
  std::size_t place_of(const void* key) const {
    const std::size_t mask = slots_.size() - 1;
    const auto number = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(key));
    std::size_t place = static_cast<std::size_t>((number >> 4) * kGolden >> 32);
    for (;; ++place) {
      const Slot& slot = slots_[place & mask];
      if (slot.key == key || slot.key == nullptr) return place & mask;
    }
  }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? kLeast : 2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.key != nullptr) slots_[place_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // size is a power of two
  std::size_t size_ = 0;
};

}  // namespace cox::detail
