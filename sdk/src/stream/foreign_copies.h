// ForeignCopies copies memory that LibTorch did not allocate (from_blob). A recorded step runs
// again after the program may have freed or filled such memory. Each recording tape owns one. One
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace cox::detail {

// Returns whether LibTorch did not allocate the tensor's memory, so that others may write to it.
bool is_foreign_memory(const at::TensorBase& tensor);

class ForeignCopies {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

  // Returns a copy of the tensor, the same one while its values stay equal. Returns an undefined
  // tensor if all copies together would exceed kMostBytes. REQUIRES: is_foreign_memory().
  at::Tensor copy_of(const at::Tensor& tensor);
  // Returns the bytes of all copies, including refused ones.
  std::uint64_t bytes() const { return bytes_; }
  void clear();

 private:
  struct Copy {
    at::Tensor original;
    at::Tensor copy;
    bool is_of(const at::Tensor& tensor) const;
  };
  std::vector<Copy> copies_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cox::detail
