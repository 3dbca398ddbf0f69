// Detects the format of products by one product that gives another result in each format.
#pragma once

#include <torch/torch.h>

#include "coordinator/core/precision_format.h"

namespace cox::test {

// Returns the format of products with a parameter at the call, with gradients on. `weight` [.., ..]
// is a parameter of the running block.
inline Precision format_of_products(const at::Tensor& weight) {
  const at::Tensor values = at::linspace(0.1, 0.9, 2 * weight.size(1)).view({2, weight.size(1)});
  const at::Tensor seen = at::mm(values, weight.t()).detach().to(at::kFloat);
  const at::NoGradGuard as_written;
  const auto is_in = [&](at::ScalarType type) {
    return at::equal(seen, at::mm(values.to(type), weight.t().to(type)).to(at::kFloat));
  };
  if (is_in(at::kBFloat16)) return Precision::bf16;
  if (is_in(at::kHalf)) return Precision::fp16;
  return is_in(at::kFloat) ? Precision::fp32 : Precision::fp8;
}

}  // namespace cox::test
