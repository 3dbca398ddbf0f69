// fp8_linear: x [.., M, K] times a weight [.., N, K] transposed, in FP8, with gradients of our own.
// Forward E4M3 times E4M3; of the gradient, cast to E5M2: grad_x = gradient times weight,
// grad_weight = gradient transposed times x, both accumulated in float. Keeps x in FP8 for backward
// (one byte an element) and the weight's codes, which it shares with the block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "sdk/src/precision/fp8_block.h"

namespace cox::detail {

struct Fp8LinearPlan {
  std::shared_ptr<Fp8Block> block;
  std::size_t product = 0;           // which of the block's
  at::ScalarType type = at::kFloat;  // of the result
  at::Tensor scale;                  // of x
  Fp8Count counting = Fp8Count::on;
};

// Returns new memory, no view. Requires: dimensions as above, one device, floating types.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const Fp8LinearPlan& plan);

}  // namespace cox::detail
