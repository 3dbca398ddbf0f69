// TapeValues knows, while a region is recorded, which tensors and storages its operators made, and
// which memory from outside they read. It says where an argument comes from when its operator runs
// again. Tape (tape.h) asks it; what is to stay goes into the records. A plain value, whose memory
// is used again after clear(); one thread at a time uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

// PointerMap finds what is noted of an address. Addresses are only added, or all forgotten; all
// lies in one array, so that noting one more costs no allocation of its own. A plain value.
// `Value` is small, and Value() says that nothing is noted.
template <class Value>
class PointerMap {
 public:
  // Returns what is noted of `key`, or null.
  Value* find(const void* key) {
    return const_cast<Value*>(static_cast<const PointerMap*>(this)->find(key));
  }
  const Value* find(const void* key) const {
    if (slots_.empty() || key == nullptr) return nullptr;
    const Slot& slot = slots_[place_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  // Returns what is noted of `key`, Value() if it is new. REQUIRES: key is not null.
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

  // Where the key is, or the free slot where it belongs. REQUIRES: some slot is free.
  std::size_t place_of(const void* key) const {
    const std::size_t mask = slots_.size() - 1;
    const auto number = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(key));
    std::size_t place = static_cast<std::size_t>((number >> 4) * 0x9E3779B97F4A7C15ULL >> 32);
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

  std::vector<Slot> slots_;  // a power of two
  std::size_t size_ = 0;
};

class TapeValues {
 public:
  static constexpr std::int32_t kNone = TapeRecords::kNone;
  struct Place {
    TapeRecords::StorageIndex storage = kNone;  // of the region
    bool is_outside = false;                    // held as memory from outside, and not copied
  };
  // A tensor that an operator returned.
  struct Result {
    const at::Tensor& tensor;
    TapeRecords::OperatorIndex maker = kNone;
    std::int16_t output = 0;
    std::int16_t element = kNone;
    bool is_random = false;
  };

  Place place_of(const c10::StorageImpl* storage) const;
  // Whether an operator of the region returned this very tensor.
  bool knows(const at::Tensor& tensor) const { return made_of(tensor) != nullptr; }
  // Whether reference() finds it without holding it as a tensor from outside. REQUIRES: it lies in
  // a storage of the region.
  bool has_value(const TapeRecords& records, const at::Tensor& tensor) const;
  TapeRecords::Reference reference(TapeRecords& records, const at::Tensor& tensor);
  void note_result(TapeRecords& records, const Result& result);

  // Tensors of this storage are from outside from here on.
  void forget_views_of(const c10::StorageImpl* storage);
  // Returns whether it was held as memory from outside.
  bool stop_holding(const c10::StorageImpl* storage);
  void clear();
  std::size_t size() const { return places_.size(); }

 private:
  struct MadeTensor {
    TapeRecords::OperatorIndex maker = kNone;
    std::int16_t output = 0;
    std::int16_t element = kNone;
    const c10::StorageImpl* storage = nullptr;
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> alive;
  };
  struct MadeIndex {
    std::int32_t index = kNone;  // in made_
  };

  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  const MadeTensor* made_of(const at::Tensor& tensor) const;
  TapeRecords::Reference outside(TapeRecords& records, const at::Tensor& tensor);
  void note_storage(TapeRecords& records, const Result& result);

  std::vector<MadeTensor> made_;
  PointerMap<MadeIndex> made_indices_;  // by TensorImpl
  PointerMap<Place> places_;            // by StorageImpl
};

}  // namespace cox::detail
