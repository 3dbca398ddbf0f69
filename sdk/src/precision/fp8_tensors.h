// Tensors in FP8 and their products. quantize_tensor() turns a tensor into codes and a scale,
// fp8_product() multiplies two such operands, and Fp8Shapes knows, having timed them, which
// products are worth it on a device. Quantising always saturates: NaN and infinity are kept, finite
// values are clipped.
//
// On the CPU one pass of our own casts, clips and counts, and a product is emulated exactly: codes
// to float, times scale, a float product, one cast (torch's own _scaled_mm does the same on the
// CPU, bit for bit). On other devices counts stay on the device until somebody reads them. Kernels
// of ours (fp8_kernels.h) quantise there, or torch's operations where there are none and where
// scales go by rows. A device with FP8 hardware multiplies by that, unless scales go by rows or a
// side is no multiple of 16. Any thread may call any function. REQUIRES everywhere: gradients and
// autocast are off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "coordinator/core/settings/precision.h"
#include "sdk/src/precision/float_codec.h"
#include "sdk/src/precision/fp8_kernels.h"

namespace cox::detail {

// Returns torch's type for e4m3 or e5m2.
at::ScalarType fp8_type(FloatFormat format);

// value = codes * scale. The scale is float, one element, or one per row: the sizes of codes with
// the last one 1.
struct Fp8Operand {
  at::Tensor codes;
  at::Tensor scale;
  // The same codes once more, where somebody has made them: of two dimensions, stored column by
  // column if `codes` lie row by row. A product takes those that hardware wants.
  at::Tensor turned{};

  Fp8Operand transposed() const;  // swaps the last two dimensions; shares memory
  bool has_one_scale() const { return scale.numel() == 1; }
  at::Tensor dequantized() const;  // float, exact
};

// Counts of one tensor, which may still be on its device.
struct Fp8Seen {
  QuantizeCounts counts;  // `sampled` is always right, the rest where `pending` is undefined
  at::Tensor pending;     // double[3]: saturated, underflow, amax
};
// Returns the counts with what `seen.pending` holds.
QuantizeCounts completed(const Fp8Seen& seen, const double* pending);

struct Fp8Quantized {
  Fp8Operand operand;
  Fp8Seen seen;
};

// Returns scales that leave `margin` bits free above the largest magnitude of `values`.
at::Tensor current_scale(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                         std::uint32_t margin);
// Returns the one scale for a largest magnitude that is known.
at::Tensor known_scale(float amax, FloatFormat format, std::uint32_t margin, at::Device device);

// Returns contiguous codes; with Fp8Order::both also `turned`, where kernels can make it in the
// same pass. REQUIRES: `values` has a floating type and two or more dimensions; `scale` is as in
// Fp8Operand.
Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format, const at::Tensor& scale,
                             Fp8Order order = Fp8Order::rows);
// The same with current_scale(), which kernels find on the way.
Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format,
                             Fp8Granularity granularity, std::uint32_t margin,
                             Fp8Order order = Fp8Order::rows);

// The same by torch's operations, as on devices without kernels; equal to the last bit.
at::Tensor scales_by_torch(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                           std::uint32_t margin);
Fp8Quantized quantize_by_torch(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale);

enum class Fp8Means : std::uint8_t { hardware, emulation };

// How hardware adds up: `fast` lets it keep sums in its own registers, which on Hopper hold 14
// bits, for twice the speed of moving them to float every few products. Its error stays below what
// rounding the operands to E4M3 costs a result; sums of gradients, which cancel more, are `full`.
enum class Fp8Sums : std::uint8_t { full, fast };

// Returns a [.., M, K] times b [.., K, N] as `type`, accumulated in float: new memory, no view.
at::Tensor fp8_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                       Fp8Means means, Fp8Sums sums = Fp8Sums::full);

// Returns whether the device multiplies FP8 by itself. Tries it, so ask once.
bool has_fp8_hardware(at::Device device);

// M, N and K of a product.
struct ProductShape {
  std::int64_t rows = 0;     // M
  std::int64_t columns = 0;  // N
  std::int64_t inner = 0;    // K
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};
// Returns whether FP8 hardware takes products of that shape.
bool fits_hardware(const ProductShape& shape);

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
