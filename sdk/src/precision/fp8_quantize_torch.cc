#include <torch/torch.h>

#include "sdk/src/precision/fp8_quantize.h"

namespace cox::detail {
namespace {

// Magnitudes that round to more than the largest finite one.
at::Tensor is_clipped(const at::Tensor& scaled, FloatFormat format) {
  return format == FloatFormat::e4m3 ? scaled.abs() > 464.0 : scaled.abs() >= 61440.0;
}

}  // namespace

at::Tensor scales_by_torch(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                           std::uint32_t margin) {
  const at::Tensor magnitudes = values.to(at::kFloat).abs();
  const at::Tensor finite = at::where(at::isfinite(magnitudes), magnitudes, 0.0);
  const at::Tensor amax =
      granularity == Fp8Granularity::row ? finite.amax(-1, true) : finite.amax().reshape({1});
  const at::Tensor largest = at::full_like(amax, largest_finite(format), at::kDouble);
  const at::Tensor exponent = std::get<1>(at::frexp(largest / amax));
  const at::Tensor free = (exponent - 1 - static_cast<std::int64_t>(margin)).clamp(-126, 126);
  return at::where(amax == 0, 1.0, at::exp2(-free.to(at::kDouble))).to(at::kFloat);
}

Fp8Quantized quantize_by_torch(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale) {
  const double largest = largest_finite(format);
  const at::Tensor wide = values.to(at::kFloat);
  const at::Tensor is_finite = at::isfinite(wide);
  const at::Tensor scaled = wide * scale.reciprocal();
  const at::Tensor clipped = at::where(is_finite, scaled.clamp(-largest, largest), wide);
  const at::Tensor codes = clipped.to(fp8_type(format)).contiguous();
  const at::Tensor lost = (codes.to(at::kFloat) == 0) & (wide != 0);
  const at::Tensor amax = at::where(is_finite, wide.abs(), 0.0).amax();
  Fp8Quantized result{{codes, scale}, {}};
  result.seen.counts.sampled = static_cast<std::uint64_t>(values.numel());
  result.seen.pending = at::stack({(is_clipped(scaled, format) & is_finite).sum().to(at::kDouble),
                                   lost.sum().to(at::kDouble), amax.to(at::kDouble)});
  return result;
}

std::vector<QuantizeCounts> read_counts(std::span<const Fp8Seen> seen) {
  std::vector<at::Tensor> waiting;
  for (const Fp8Seen& one : seen) {
    if (one.pending.defined()) waiting.push_back(one.pending);
  }
  const at::Tensor read = waiting.empty() ? at::Tensor() : at::stack(waiting).to(at::kCPU);
  const double* numbers = read.defined() ? read.const_data_ptr<double>() : nullptr;
  std::vector<QuantizeCounts> all;
  for (const Fp8Seen& one : seen) {
    all.push_back(one.counts);
    if (!one.pending.defined()) continue;
    all.back().saturated = static_cast<std::uint64_t>(numbers[0]);
    all.back().underflow = static_cast<std::uint64_t>(numbers[1]);
    all.back().amax = static_cast<float>(numbers[2]);
    numbers += 3;
  }
  return all;
}

}  // namespace cox::detail
