// Fp8Weights: quantised weights of a block, so that a weight is quantised once a step however often
// it is used (micro-batches, running again, weights shared inside). An entry serves exactly the
// memory it was made from: storage, offset, sizes, strides and version counter; the storage is
// watched weakly, so memory that was freed and handed out again is no match. What none of these
// show (an edit through `.data()` or a raw pointer) needs clear(), which every end of a step does.
// The owner guards it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <cstdint>
#include <deque>

#include "sdk/src/precision/fp8_quantize.h"

namespace cox::detail {

class Fp8Weights {
 public:
  static constexpr std::size_t kMost = 64;  // entries; the oldest goes first

  explicit Fp8Weights(Fp8Granularity granularity) : granularity_(granularity) {}

  // E4M3 codes of `weight` [.., N, K], one scale, or one per row of K values.
  Fp8Operand get(const at::Tensor& weight, std::uint32_t margin);
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  std::uint64_t quantized() const { return quantized_; }  // how often one had to be made

 private:
  struct Key {
    const void* storage = nullptr;
    const void* data = nullptr;
    std::int64_t offset = 0;
    c10::DimVector sizes;
    c10::DimVector strides;
    std::int64_t version = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps its address from being reused
    Fp8Operand operand;
  };
  static Key key_of(const at::Tensor& weight);

  Fp8Granularity granularity_;
  std::deque<Entry> entries_;
  std::uint64_t quantized_ = 0;
};

}  // namespace cox::detail
