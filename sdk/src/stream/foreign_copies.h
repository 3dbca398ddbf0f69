// ForeignCopies are copies of memory that LibTorch did not allocate (from_blob): for records of a
// step that runs again after the program may have freed or filled that memory. A tape has them
// while it records; one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace cox::detail {

// Whether LibTorch did not allocate the memory, so that others may write to it.
bool is_foreign_memory(const at::TensorBase& tensor);

class ForeignCopies {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

  // Returns a copy of the tensor as it is now, the same one while its values stay; undefined once
  // all copies together would take more than kMostBytes. REQUIRES: is_foreign_memory().
  at::Tensor copy_of(const at::Tensor& tensor);
  // Returns the bytes of all copies, those that were not made included.
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
