// Products of FP8 operands. On the CPU, and wherever scales go by rows or a side is no multiple of
// 16, by exact emulation: codes to float, times scale, a float product, one cast (what torch's own
// _scaled_mm does on the CPU, bit for bit); on a device with FP8 hardware by that. Fp8Shapes: which
// products are worth it there. Callers have gradients and autocast off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "sdk/src/precision/fp8_quantize.h"

namespace cox::detail {

enum class Fp8Means : std::uint8_t { hardware, emulation };
enum class ProductPath : std::uint8_t { fp8, bf16 };

// a [.., M, K] times b [.., K, N], accumulated in float, returned as `type`. New memory, no view.
at::Tensor fp8_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                       Fp8Means means);

// Whether the device multiplies FP8 by itself: asked by trying it, so ask once.
bool has_fp8_hardware(at::Device device);

struct ProductShape {
  std::int64_t rows = 0;     // M
  std::int64_t columns = 0;  // N
  std::int64_t inner = 0;    // K
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

// Measures each shape once: the least of a few runs each way decides for good. Shared by all blocks
// on a device; thread-safe.
class Fp8Shapes {
 public:
  // Microseconds of one product that way, quantising included.
  using Timer = std::function<double(const ProductShape&, ProductPath)>;

  explicit Fp8Shapes(Timer timer, int runs = 5) : timer_(std::move(timer)), runs_(runs) {}
  // For a device with FP8 hardware; nullptr for one that only imitates FP8, where nothing is
  // chosen.
  static std::shared_ptr<Fp8Shapes> of(at::Device device);

  // fp8, or bf16 where that is faster or the hardware cannot take the shape.
  ProductPath best(const ProductShape& shape);

 private:
  double least(const ProductShape& shape, ProductPath path) const;

  Timer timer_;
  int runs_;
  std::mutex mutex_;
  std::map<ProductShape, ProductPath> known_;
};

}  // namespace cox::detail
