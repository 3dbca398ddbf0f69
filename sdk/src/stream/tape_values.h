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

#include "sdk/src/stream/pointer_map.h"
#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

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
