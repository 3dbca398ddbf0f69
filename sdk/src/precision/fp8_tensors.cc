#include "sdk/src/precision/fp8_tensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>

#include "sdk/src/device/choice.h"
#include "sdk/src/device/scan_loops.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {
namespace {

constexpr std::int64_t kProductChunk = 1L << 16;  // elements for one thread at a time

// Returns input for the CPU's loops: bf16 as it is, all other types as float.
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

float amax_of(std::span<const float> values) {
  return finite_amax<FromFp32>(values.data(), static_cast<std::int64_t>(values.size()));
}
float amax_of(std::span<const std::uint16_t> bf16_values) {
  return finite_amax<FromBf16>(bf16_values.data(), static_cast<std::int64_t>(bf16_values.size()));
}

std::int64_t rows_of(const at::Tensor& values) {
  return values.size(-1) == 0 ? 0 : values.numel() / values.size(-1);
}

// Runs part(first, count) over `total` elements in pieces of `piece`, on as many threads as fit.
template <class Part>
void in_parallel(std::int64_t total, std::int64_t piece, const Part& part) {
  const std::int64_t pieces = piece == 0 ? 0 : (total + piece - 1) / piece;
  const std::int64_t grain = std::max<std::int64_t>(1, piece == 0 ? 1 : kProductChunk / piece);
  at::parallel_for(0, pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      part(static_cast<std::size_t>(p), static_cast<std::size_t>(p * piece),
           static_cast<std::size_t>(std::min(piece, total - p * piece)));
    }
  });
}

at::Tensor row_scales_on_cpu(const at::Tensor& values, at::Tensor scale, FloatFormat format,
                             std::uint32_t margin) {
  auto* scales = scale.mutable_data_ptr<float>();
  with_values(values, [&](auto all) {
    in_parallel(values.numel(), values.size(-1), [&](auto row, auto first, auto count) {
      const float amax = amax_of(all.subspan(first, count));
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
    in_parallel(values.numel(), by_row ? values.size(-1) : kProductChunk,
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

// Returns values with the strides of `codes`, which leave no holes.
at::Tensor decoded_on_cpu(const at::Tensor& codes) {
  const at::Tensor values = at::empty_like(codes, codes.options().dtype(at::kFloat));
  const auto format =
      codes.scalar_type() == at::kFloat8_e4m3fn ? FloatFormat::e4m3 : FloatFormat::e5m2;
  const auto total = static_cast<std::size_t>(codes.numel());
  const std::span from(static_cast<const std::uint8_t*>(codes.const_data_ptr()), total);
  const std::span to(values.mutable_data_ptr<float>(), total);
  in_parallel(codes.numel(), kProductChunk, [&](auto, std::size_t first, std::size_t count) {
    decode(format, from.subspan(first, count), to.subspan(first, count));
  });
  return values;
}

// Returns a mask of the magnitudes that round to more than the largest finite one.
at::Tensor is_clipped(const at::Tensor& scaled, FloatFormat format) {
  return format == FloatFormat::e4m3 ? scaled.abs() > 464.0 : scaled.abs() >= 61440.0;
}

constexpr std::int64_t kHardwareMultiple = 16;

bool can_use_hardware(const Fp8Operand& a, const Fp8Operand& b) {
  return a.codes.is_cuda() && a.codes.dim() == 2 && a.has_one_scale() && b.has_one_scale() &&
         fits_hardware({a.codes.size(0), b.codes.size(1), a.codes.size(1)});
}

bool lies_by_rows(const at::Tensor& codes) {
  return codes.defined() && codes.is_contiguous();
}

// The hardware needs a row-major left operand and a column-major right one.
at::Tensor by_rows(const Fp8Operand& operand) {
  return lies_by_rows(operand.turned) ? operand.turned : operand.codes.contiguous();
}

at::Tensor hardware_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                            Fp8Sums sums) {
  return at::_scaled_mm(by_rows(a), by_rows(b.transposed()).t(), a.scale, b.scale, {}, {}, type,
                        /*use_fast_accum=*/sums == Fp8Sums::fast);
}

// Returns null if torch's operations must do the work.
const Fp8Kernels* kernels_for(const at::Tensor& values) {
  if (!values.is_cuda() || values.numel() == 0) return nullptr;
  const auto kernels = Fp8Kernels::of(values.device(), values.scalar_type());
  return kernels.ok() ? *kernels : nullptr;
}

// Both orders serve hardware only.
Fp8Order order_for(const at::Tensor& values, Fp8Order wanted) {
  const bool fits = values.dim() == 2 && values.size(0) % kHardwareMultiple == 0 &&
                    values.size(1) % kHardwareMultiple == 0;
  return fits ? wanted : Fp8Order::rows;
}

Fp8Quantized told(const Fp8Made& made) {
  Fp8Quantized result{{made.codes, made.scale, made.turned}, {}};
  result.seen.counts.sampled = static_cast<std::uint64_t>(made.codes.numel());
  result.seen.pending = made.counts;
  return result;
}

// REQUIRES: `device` has an index, as a tensor's has.
double seconds_of(const std::function<void()>& work, at::Device device) {
  wait_for_current_stream(device);
  const auto start = std::chrono::steady_clock::now();
  work();
  wait_for_current_stream(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns values between -1 and 1 that look random. Uses no generator of the program. Multiplying
// ones would take a device less power, and less time.
at::Tensor some_values(std::int64_t rows, std::int64_t columns, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor down = at::arange(rows, options).mul_(0.7390851F).unsqueeze(1);
  return (down + at::arange(columns, options).mul_(1.3219281F)).sin_();
}

// Does a step's work for a product, forward and backward, with every cast. x [M, K] and the
// gradient [M, N] come in bf16, the weight [N, K] in float.
void run_in_bf16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gradient) {
  const at::Tensor b = weight.to(at::kBFloat16);
  at::mm(x, b.t());
  at::mm(gradient, b);
  at::mm(gradient.t(), x).to(at::kFloat);
}

void run_in_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gradient) {
  const auto quantized = [](const at::Tensor& values, FloatFormat format) {
    return quantize_tensor(values, format, Fp8Granularity::tensor, 0, Fp8Order::both).operand;
  };
  const Fp8Operand a = quantized(x, FloatFormat::e4m3);
  const Fp8Operand b = quantized(weight, FloatFormat::e4m3);
  const auto means = Fp8Means::hardware;
  fp8_product(a, b.transposed(), at::kBFloat16, means, Fp8Sums::fast);
  const Fp8Operand g = quantized(gradient, FloatFormat::e5m2);
  fp8_product(g, b, at::kBFloat16, means);
  fp8_product(g.transposed(), a, at::kFloat, means);
}

// Runs follow each other without a wait for about this long, because one run may be shorter than
// its launches.
constexpr double kLongEnough = 2e-3;
constexpr double kMostInARow = 16;

double time_on(at::Device device, const ProductShape& shape, ProductPath path) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = some_values(shape.rows, shape.inner, device).to(at::kBFloat16);
  const at::Tensor weight = some_values(shape.columns, shape.inner, device);
  const at::Tensor gradient = some_values(shape.rows, shape.columns, device).to(at::kBFloat16);
  const auto run = [&] {
    path == ProductPath::fp8 ? run_in_fp8(x, weight, gradient) : run_in_bf16(x, weight, gradient);
  };
  const double once = seconds_of(run, x.device());
  const double in_a_row = std::clamp(std::ceil(kLongEnough / once), 1.0, kMostInARow);
  const auto runs = [&] {
    for (int i = 0; i < static_cast<int>(in_a_row); ++i) run();
  };
  return 1e6 * seconds_of(runs, x.device()) / in_a_row;
}

}  // namespace

at::ScalarType fp8_type(FloatFormat format) {
  return format == FloatFormat::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

bool fits_hardware(const ProductShape& shape) {
  return shape.rows % kHardwareMultiple == 0 && shape.columns % kHardwareMultiple == 0 &&
         shape.inner % kHardwareMultiple == 0;
}

Fp8Operand Fp8Operand::transposed() const {
  return {codes.transpose(-2, -1), has_one_scale() ? scale : scale.transpose(-2, -1),
          turned.defined() ? turned.transpose(-2, -1) : at::Tensor()};
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
    return known_scale(scan(read, ScanKind::extent).amax, format, margin, values.device());
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

Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format, const at::Tensor& scale,
                             Fp8Order order) {
  const Fp8Kernels* kernels = scale.numel() == 1 ? kernels_for(values) : nullptr;
  if (kernels) return told(kernels->quantize(values, format, scale, order_for(values, order)));
  if (values.numel() > 0 && !values.device().is_cpu()) {
    return quantize_by_torch(values, format, scale);
  }
  const at::Tensor codes = at::empty(values.sizes(), values.options().dtype(fp8_type(format)));
  const QuantizeCounts counts = quantize_on_cpu(readable(values), format, scale, codes);
  return {{codes, scale}, {counts, {}}};
}

Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format,
                             Fp8Granularity granularity, std::uint32_t margin, Fp8Order order) {
  const bool has_one = granularity == Fp8Granularity::tensor;
  const Fp8Kernels* kernels = has_one ? kernels_for(values) : nullptr;
  if (kernels) return told(kernels->quantize(values, format, margin, order_for(values, order)));
  return quantize_tensor(values, format, current_scale(values, format, granularity, margin), order);
}

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
  // E4M3 has no infinity. LibTorch's cast of one gave NaN in 2.11, and gives 448 in 2.14.
  const at::Tensor others =
      format == FloatFormat::e4m3 ? at::copysign(at::full_like(wide, std::nanf("")), wide) : wide;
  const at::Tensor clipped = at::where(is_finite, scaled.clamp(-largest, largest), others);
  const at::Tensor codes = clipped.to(fp8_type(format)).contiguous();
  const at::Tensor lost = (codes.to(at::kFloat) == 0) & (wide != 0);
  const at::Tensor amax = at::where(is_finite, wide.abs(), 0.0).amax();
  Fp8Quantized result{{codes, scale}, {}};
  result.seen.counts.sampled = static_cast<std::uint64_t>(values.numel());
  result.seen.pending = at::stack({(is_clipped(scaled, format) & is_finite).sum().to(at::kDouble),
                                   lost.sum().to(at::kDouble), amax.to(at::kDouble)});
  return result;
}

QuantizeCounts completed(const Fp8Seen& seen, const double* pending) {
  QuantizeCounts counts = seen.counts;
  counts.saturated = static_cast<std::uint64_t>(pending[0]);
  counts.underflow = static_cast<std::uint64_t>(pending[1]);
  counts.amax = static_cast<float>(pending[2]);
  return counts;
}

at::Tensor fp8_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                       Fp8Means means, Fp8Sums sums) {
  if (means == Fp8Means::hardware && can_use_hardware(a, b)) {
    return hardware_product(a, b, type, sums);
  }
  return at::matmul(a.dequantized(), b.dequantized()).to(type);
}

bool has_fp8_hardware(at::Device device) try {
  if (!device.is_cuda()) return false;
  const torch::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor codes = at::ones({16, 16}, options).to(at::kFloat8_e4m3fn);
  const Fp8Operand one{codes, at::ones({1}, options)};
  return hardware_product(one, one, at::kBFloat16, Fp8Sums::full)
             .to(at::kFloat)
             .sum()
             .item<float>() == 4096;
} catch (const std::exception&) {
  return false;
}

std::shared_ptr<Fp8Shapes> Fp8Shapes::of(at::Device device) {
  if (!has_fp8_hardware(device)) return nullptr;
  return std::make_shared<Fp8Shapes>([device](const ProductShape& shape, ProductPath path) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    if (path == ProductPath::fp8 && !fits_hardware(shape)) return kNever;
    try {
      return time_on(device, shape, path);
    } catch (const c10::OutOfMemoryError&) {
      return kNever;  // no memory for timing: bf16
    }
  });
}

ProductPath Fp8Shapes::best(const ProductShape& shape) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(shape);
  if (known != known_.end()) return known->second;
  const bool is_faster = least(shape, ProductPath::fp8) < least(shape, ProductPath::bf16);
  const ProductPath path = is_faster ? ProductPath::fp8 : ProductPath::bf16;
  known_.emplace(shape, path);
  return path;
}

double Fp8Shapes::least(const ProductShape& shape, ProductPath path) const {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs_; ++run) least = std::min(least, timer_(shape, path));
  return least;
}

}  // namespace cox::detail
