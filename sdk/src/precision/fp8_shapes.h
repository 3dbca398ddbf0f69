// Fp8Shapes knows which products are worth FP8 on a device, because it has timed them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "sdk/src/precision/fp8_tensors.h"

namespace cox::detail {

enum class ProductPath : std::uint8_t { fp8, bf16 };

// Fp8Shapes measures each shape of a product once; the least of a few runs each way decides for
// good. All blocks on a device share one. Thread-safe.
class Fp8Shapes {
 public:
  // Returns the microseconds that a step spends on one product that way.
  using Timer = std::function<double(const ProductShape&, ProductPath)>;

  explicit Fp8Shapes(Timer timer, int runs = 3) : timer_(std::move(timer)), runs_(runs) {}
  // Returns null for a device without FP8 hardware, where nothing is chosen.
  static std::shared_ptr<Fp8Shapes> of(at::Device device);

  // Returns bf16 where that is faster or the hardware cannot take the shape, else fp8.
  ProductPath best(const ProductShape& shape);

 private:
  double least(const ProductShape& shape, ProductPath path) const;

  Timer timer_;
  int runs_;
  std::mutex mutex_;
  std::map<ProductShape, ProductPath> known_;
};

}  // namespace cox::detail
