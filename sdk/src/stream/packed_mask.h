// PackedMask stores a tensor with two distinct values, such as a dropout's mask, in one bit a
// value, and restores the same bits. A bool mask shrinks to an eighth. A CPU dropout's noise,
// floats of zero or 1/(1-p), shrinks to a thirty-second.
//
// Packs the whole storage of the tensor, so that any view can be restored. Compares values as bits:
// +0 and -0 differ, and a NaN is a value. A plain value; any thread. CPU memory only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <optional>

namespace cox::detail {

class PackedMask {
 public:
  // Returns nothing for more than two values, and for a tensor that is not strided or not on a CPU.
  // Reads only until the answer is known.
  static std::optional<PackedMask> pack(const at::Tensor& tensor);
  // Returns pack()'s result for another tensor of the same storage, without reading it.
  std::optional<PackedMask> sharing(const at::Tensor& tensor) const;

  // Returns all of the storage's values in new memory, in one dimension.
  at::Tensor values() const;
  // Returns the packed tensor, in new memory.
  at::Tensor tensor() const;

  at::ScalarType type() const { return type_; }
  at::IntArrayRef sizes() const { return sizes_; }
  // Returns the version counter shared with the packed tensor.
  const c10::VariableVersion& counter() const { return counter_; }
  std::int64_t bytes() const;  // size of the packed form

 private:
  PackedMask() = default;

  at::Tensor bits_;  // bytes; the first value is the lowest bit of the first byte
  std::int64_t count_ = 0;
  std::uint64_t zero_ = 0, one_ = 0;  // bit patterns of the values packed as 0 and as 1
  at::ScalarType type_ = at::kFloat;
  c10::DimVector sizes_, strides_;
  std::int64_t offset_ = 0;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
};

}  // namespace cox::detail
