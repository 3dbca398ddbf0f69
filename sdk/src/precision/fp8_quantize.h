// Tensors in FP8: codes and scales, and how a tensor gets them. On the CPU one pass of our own
// casts, clips and counts; elsewhere torch's operations do, and their counts stay on the device
// until somebody reads them. Saturating always: NaN and infinity are kept, finite values clipped.
// Free functions without state; callers have gradients and autocast off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/precision_config.h"
#include "sdk/src/precision/float_codec.h"

namespace cox::detail {

at::ScalarType fp8_type(FloatFormat format);  // of torch; e4m3 and e5m2

// value = codes * scale. Scale: float, one element, or one per row: sizes of codes, the last 1.
struct Fp8Operand {
  at::Tensor codes;
  at::Tensor scale;

  Fp8Operand transposed() const;  // the last two dimensions; shares memory
  bool has_one_scale() const { return scale.numel() == 1; }
  at::Tensor dequantized() const;  // float, exact
};

// Counts of one tensor, perhaps still on its device.
struct Fp8Seen {
  QuantizeCounts counts;  // `sampled` is always right, the rest where `pending` is undefined
  at::Tensor pending;     // double[3]: saturated, underflow, amax
};
// One read of the device for all.
std::vector<QuantizeCounts> read_counts(std::span<const Fp8Seen> seen);

struct Fp8Quantized {
  Fp8Operand operand;
  Fp8Seen seen;
};

// Scales that leave `margin` bits free above the largest magnitude that `values` have now.
at::Tensor current_scale(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                         std::uint32_t margin);
// The one scale for a largest magnitude that is known.
at::Tensor known_scale(float amax, FloatFormat format, std::uint32_t margin, at::Device device);

// Requires: values of a floating type with two or more dimensions; scale as in Fp8Operand. Codes
// are contiguous.
Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format, const at::Tensor& scale);

// The same by torch's operations, as it is done on other devices; equal to the last bit.
at::Tensor scales_by_torch(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                           std::uint32_t margin);
Fp8Quantized quantize_by_torch(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale);

}  // namespace cox::detail
