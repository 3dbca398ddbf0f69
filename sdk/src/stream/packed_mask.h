// PackedMask holds a tensor whose values are all one of two, such as a dropout's mask, in one bit a
// value, and gives back the same bits. A mask of bool takes an eighth, the noise of a dropout on a
// CPU, which is a float of zero or 1/(1-p), a thirty-second part.
//
// It packs the whole storage that the tensor lies in, so that any view of it can be had. Values are
// compared as bits: zeros of either sign are two values, and a NaN is one. A plain value; any
// thread. Only memory of the CPU is packed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <optional>

namespace cox::detail {

class PackedMask {
 public:
  // Returns nothing where there are more than two values, or where the tensor is not a strided one
  // on a CPU. Reads as much as it takes to tell.
  static std::optional<PackedMask> pack(const at::Tensor& tensor);
  // Returns what pack() would for another tensor of the same storage, without reading it.
  std::optional<PackedMask> sharing(const at::Tensor& tensor) const;

  // Returns all of the storage's values in memory of their own, in one dimension.
  at::Tensor values() const;
  // Returns the tensor that was packed, in such memory.
  at::Tensor tensor() const;

  at::ScalarType type() const { return type_; }
  at::IntArrayRef sizes() const { return sizes_; }
  // Of the tensor that was packed, shared with it.
  const c10::VariableVersion& counter() const { return counter_; }
  std::int64_t bytes() const;  // that it takes

 private:
  PackedMask() = default;

  at::Tensor bits_;  // bytes: the first value's bit is the lowest one of the first byte
  std::int64_t count_ = 0;
  std::uint64_t zero_ = 0, one_ = 0;  // the bits of the value that a zero stands for, and a one
  at::ScalarType type_ = at::kFloat;
  c10::DimVector sizes_, strides_;
  std::int64_t offset_ = 0;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
};

}  // namespace cox::detail
