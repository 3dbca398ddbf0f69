// Fp8Frame: what the products of one call of a block did, in order, so that the call can be run
// again to the same bits. Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace cox::detail {

// Which operand of a product is the weight, if it runs in FP8 at all.
enum class Fp8Weight : std::uint8_t { none, left, right };

class Fp8Frame {
 public:
  struct Product {
    Fp8Weight weight = Fp8Weight::none;
    at::Tensor scale;  // of the activation
  };
  std::vector<Product> products;
  std::vector<std::shared_ptr<Fp8Frame>> calls;  // scopes opened inside
};

}  // namespace cox::detail
