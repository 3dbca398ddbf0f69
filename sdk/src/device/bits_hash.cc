#include "sdk/src/device/bits_hash.h"

#include <torch/torch.h>

#include <algorithm>

namespace cox::detail {
namespace {

at::ScalarType bits_type(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

}  // namespace

at::Tensor bits_hash_on(at::Device device, std::span<const at::Tensor> tensors,
                        std::int64_t at_once) {
  constexpr std::int64_t kSpread = 0x1e3779b97f4a7c15;
  const torch::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  at::Tensor sum = at::zeros({}, options);
  std::int64_t place = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bits = tensor.detach().contiguous().view({-1}).view(bits_type(tensor));
    for (std::int64_t first = 0; first < bits.numel(); first += at_once) {
      const std::int64_t count = std::min(at_once, bits.numel() - first);
      at::Tensor products = at::arange(place, place + count, options).mul_(kSpread * 2).add_(1);
      sum += products.mul_(bits.narrow(0, first, count)).sum();
      place += count;
    }
  }
  return sum;
}

}  // namespace cox::detail
