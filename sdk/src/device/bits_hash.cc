#include "sdk/src/device/bits_hash.h"

#include <torch/torch.h>

#include <algorithm>

#include "coordinator/core/split_mix.h"
#include "coordinator/io/content_hash.h"

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

std::uint64_t bits_hash(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  return io::content_hash(std::span(bytes, tensor.nbytes()));
}

at::Tensor bits_hash_on(at::Device device, std::span<const at::Tensor> tensors,
                        std::int64_t at_once) {
  constexpr auto kSpread = static_cast<std::int64_t>(2 * kGolden);
  const torch::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  at::Tensor sum = at::zeros({}, options);
  std::int64_t place = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bits = tensor.detach().contiguous().view({-1}).view(bits_type(tensor));
    for (std::int64_t first = 0; first < bits.numel(); first += at_once) {
      const std::int64_t count = std::min(at_once, bits.numel() - first);
      at::Tensor products = at::arange(place, place + count, options).mul_(kSpread).add_(1);
      sum += products.mul_(bits.narrow(0, first, count)).sum();
      place += count;
    }
  }
  return sum;
}

}  // namespace cox::detail
