// FP8 tensors and their products. quantize_tensor() converts a tensor into codes and a scale;
// fp8_product() multiplies two such operands; Fp8Shapes times products on a device and chooses
// their format. Quantising always keeps NaN and infinity, and clips finite values. Any thread may
// call any function. REQUIRES everywhere: gradients and autocast are off.
//
// On the CPU one pass casts, clips and counts, and a product is emulated exactly: codes to float,
// times scale, a float product, one cast. (torch's own _scaled_mm does the same on the CPU, bit for
// bit.) On other devices counts stay on the device until read. Our kernels (fp8_kernels.h) quantise
// there; torch's operations do if kernels are missing or scales go by rows. FP8 hardware
// multiplies, unless scales go by rows or a side is no multiple of 16.
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

// An operand: value = codes * scale. The scale is float, with one element, or with one for each
// row: the sizes of codes with the last one 1.
struct Fp8Operand {
  at::Tensor codes;
  at::Tensor scale;
  // The same codes, column by column if `codes` lie row by row, or undefined. Two dimensions. A
  // product uses the order that the hardware needs.
  at::Tensor turned{};

  Fp8Operand transposed() const;  // swaps the last two dimensions; shares memory
  bool has_one_scale() const { return scale.numel() == 1; }
  at::Tensor dequantized() const;  // float, exact
};

// Counts of one tensor, possibly still on its device.
struct Fp8Seen {
  QuantizeCounts counts;  // `sampled` is always valid, the rest if `pending` is undefined
  at::Tensor pending;     // double[3]: saturated, underflow, amax
};
// Returns the counts including `pending`, the values of `seen.pending`.
QuantizeCounts completed(const Fp8Seen& seen, const double* pending);

struct Fp8Quantized {
  Fp8Operand operand;
  Fp8Seen seen;
};

// Returns scales that leave `margin` bits free above the largest magnitude of `values`.
at::Tensor current_scale(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                         std::uint32_t margin);
// Returns the one scale for a known largest magnitude.
at::Tensor known_scale(float amax, FloatFormat format, std::uint32_t margin, at::Device device);

// Returns contiguous codes. Fp8Order::both also fills `turned`, if kernels can in the same pass.
// REQUIRES: `values` has a floating type and at least two dimensions; `scale` is as in Fp8Operand.
Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format, const at::Tensor& scale,
                             Fp8Order order = Fp8Order::rows);
// The same with current_scale(), computed by the kernels.
Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format,
                             Fp8Granularity granularity, std::uint32_t margin,
                             Fp8Order order = Fp8Order::rows);

// The same by torch's operations, for devices without kernels; equal to the last bit.
at::Tensor scales_by_torch(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                           std::uint32_t margin);
Fp8Quantized quantize_by_torch(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale);

enum class Fp8Means : std::uint8_t { hardware, emulation };

// Accuracy of the hardware's sums. `fast` keeps sums in the hardware's registers, with 14 bits on
// Hopper, at twice the speed of moving sums to float every few products. The error stays below the
// error of rounding the operands to E4M3. Sums of gradients cancel more, and use `full`.
enum class Fp8Sums : std::uint8_t { full, fast };

// Returns a [.., M, K] times b [.., K, N] as `type`, accumulated in float: new memory, no view.
at::Tensor fp8_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                       Fp8Means means, Fp8Sums sums = Fp8Sums::full);

// Returns whether the device multiplies FP8 in hardware. Runs a trial, so call it once.
bool has_fp8_hardware(at::Device device);

// M, N and K of a product.
struct ProductShape {
  std::int64_t rows = 0;     // M
  std::int64_t columns = 0;  // N
  std::int64_t inner = 0;    // K
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};
// Returns whether FP8 hardware accepts products of the shape.
bool fits_hardware(const ProductShape& shape);

enum class ProductPath : std::uint8_t { fp8, bf16 };

// Fp8Shapes times each shape of a product once. The least of a few runs in each format decides
// finally. All blocks on a device share one. Thread-safe.
class Fp8Shapes {
 public:
  // Returns the microseconds that a step spends on one product in the format.
  using Timer = std::function<double(const ProductShape&, ProductPath)>;

  explicit Fp8Shapes(Timer timer, int runs = 3) : timer_(std::move(timer)), runs_(runs) {}
  // Returns null for a device without FP8 hardware.
  static std::shared_ptr<Fp8Shapes> of(at::Device device);

  // Returns bf16 if it is faster or the hardware does not accept the shape, else fp8.
  ProductPath best(const ProductShape& shape);

 private:
  double least(const ProductShape& shape, ProductPath path) const;

  Timer timer_;
  int runs_;
  std::mutex mutex_;
  std::map<ProductShape, ProductPath> known_;
};

}  // namespace cox::detail
