// Compares tensors bit for bit.
#pragma once

#include <torch/torch.h>

namespace sdk_test {

// Returns whether type, sizes and bits are equal; false for tensors that are not strided.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.layout() != at::kStrided || b.layout() != at::kStrided) return false;
  const at::NoGradGuard no_grad;
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.detach().contiguous().view({-1}).view(at::kByte);
  };
  return a.numel() == 0 || at::equal(bytes(a), bytes(b));
}

}  // namespace sdk_test
