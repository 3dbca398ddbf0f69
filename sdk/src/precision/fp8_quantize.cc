#include "sdk/src/precision/fp8_quantize.h"

#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "sdk/src/precision/fp8_history.h"

namespace cox::detail {
namespace {

constexpr std::int64_t kChunk = 1L << 16;  // elements that one thread takes at a time

// What the loops on the CPU read: bf16 as it is, everything else as float.
at::Tensor readable(const at::Tensor& values) {
  const bool is_bf16 = values.scalar_type() == at::kBFloat16;
  return (is_bf16 ? values : values.to(at::kFloat)).contiguous();
}

// Calls body(span of values, first) for parts of a readable tensor.
template <class Body>
void with_values(const at::Tensor& readable, const Body& body) {
  const auto count = static_cast<std::size_t>(readable.numel());
  if (readable.scalar_type() == at::kBFloat16) {
    const auto* data = static_cast<const std::uint16_t*>(readable.const_data_ptr());
    body(std::span<const std::uint16_t>(data, count));
  } else {
    body(std::span<const float>(readable.const_data_ptr<float>(), count));
  }
}

std::int64_t rows_of(const at::Tensor& values) {
  return values.size(-1) == 0 ? 0 : values.numel() / values.size(-1);
}

// Runs part(first, count) over `total` elements in pieces of `piece`, on as many threads as fit.
template <class Part>
void in_parallel(std::int64_t total, std::int64_t piece, const Part& part) {
  const std::int64_t pieces = piece == 0 ? 0 : (total + piece - 1) / piece;
  const std::int64_t grain = std::max<std::int64_t>(1, piece == 0 ? 1 : kChunk / piece);
  at::parallel_for(0, pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      part(static_cast<std::size_t>(p), static_cast<std::size_t>(p * piece),
           static_cast<std::size_t>(std::min(piece, total - p * piece)));
    }
  });
}

float amax_on_cpu(const at::Tensor& values) {
  std::mutex mutex;
  float amax = 0;
  with_values(values, [&](auto all) {
    in_parallel(values.numel(), kChunk, [&](auto, std::size_t first, std::size_t count) {
      const float part = finite_amax(all.subspan(first, count));
      const std::lock_guard lock(mutex);
      amax = std::max(amax, part);
    });
  });
  return amax;
}

at::Tensor row_scales_on_cpu(const at::Tensor& values, at::Tensor scale, FloatFormat format,
                             std::uint32_t margin) {
  auto* scales = scale.mutable_data_ptr<float>();
  with_values(values, [&](auto all) {
    in_parallel(values.numel(), values.size(-1), [&](auto row, auto first, auto count) {
      const float amax = finite_amax(all.subspan(first, count));
      scales[row] = 1 / fp8_multiplier(format, amax, margin);
    });
  });
  return scale;
}

QuantizeCounts quantize_on_cpu(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale, const at::Tensor& codes) {
  const bool by_row = scale.numel() > 1;
  const auto* scales = scale.const_data_ptr<float>();
  auto* out = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  const std::span<std::uint8_t> all_codes(out, static_cast<std::size_t>(codes.numel()));
  std::mutex mutex;
  QuantizeCounts total;
  with_values(values, [&](auto all) {
    in_parallel(values.numel(), by_row ? values.size(-1) : kChunk,
                [&](std::size_t piece, std::size_t first, std::size_t count) {
                  const QuantizeCounts counts =
                      quantize(format, all.subspan(first, count), 1 / scales[by_row ? piece : 0],
                               all_codes.subspan(first, count));
                  const std::lock_guard lock(mutex);
                  merge_into(total, counts);
                });
  });
  return total;
}

// With the strides of `codes`, which leave no holes.
at::Tensor decoded_on_cpu(const at::Tensor& codes) {
  const at::Tensor values = at::empty_like(codes, codes.options().dtype(at::kFloat));
  const auto format =
      codes.scalar_type() == at::kFloat8_e4m3fn ? FloatFormat::e4m3 : FloatFormat::e5m2;
  const auto total = static_cast<std::size_t>(codes.numel());
  const std::span from(static_cast<const std::uint8_t*>(codes.const_data_ptr()), total);
  const std::span to(values.mutable_data_ptr<float>(), total);
  in_parallel(codes.numel(), kChunk, [&](auto, std::size_t first, std::size_t count) {
    decode(format, from.subspan(first, count), to.subspan(first, count));
  });
  return values;
}

}  // namespace

at::ScalarType fp8_type(FloatFormat format) {
  return format == FloatFormat::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

Fp8Operand Fp8Operand::transposed() const {
  return {codes.transpose(-2, -1), has_one_scale() ? scale : scale.transpose(-2, -1)};
}

at::Tensor Fp8Operand::dequantized() const {
  const bool is_ours = codes.device().is_cpu() && codes.is_non_overlapping_and_dense();
  return (is_ours ? decoded_on_cpu(codes) : codes.to(at::kFloat)).mul_(scale);
}

at::Tensor current_scale(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                         std::uint32_t margin) {
  if (values.numel() == 0) return at::ones({1}, values.options().dtype(at::kFloat));
  if (!values.device().is_cpu()) return scales_by_torch(values, format, granularity, margin);
  const at::Tensor read = readable(values);
  if (granularity == Fp8Granularity::tensor || rows_of(read) == 1) {
    return known_scale(amax_on_cpu(read), format, margin, values.device());
  }
  c10::DimVector sizes(read.sizes().begin(), read.sizes().end());
  sizes.back() = 1;
  const at::Tensor scale = at::empty(sizes, read.options().dtype(at::kFloat));
  return row_scales_on_cpu(read, scale, format, margin);
}

at::Tensor known_scale(float amax, FloatFormat format, std::uint32_t margin, at::Device device) {
  return at::full({1}, 1 / fp8_multiplier(format, amax, margin),
                  at::TensorOptions(device).dtype(at::kFloat));
}

Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format,
                             const at::Tensor& scale) {
  if (values.numel() > 0 && !values.device().is_cpu()) {
    return quantize_by_torch(values, format, scale);
  }
  const at::Tensor codes = at::empty(values.sizes(), values.options().dtype(fp8_type(format)));
  const QuantizeCounts counts = quantize_on_cpu(readable(values), format, scale, codes);
  return {{codes, scale}, {counts, {}}};
}

}  // namespace cox::detail
