#include "sdk/src/precision/fp8_product.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace cox::detail {
namespace {

constexpr std::int64_t kHardwareMultiple = 16;

bool fits_hardware(const ProductShape& shape) {
  return shape.rows % kHardwareMultiple == 0 && shape.columns % kHardwareMultiple == 0 &&
         shape.inner % kHardwareMultiple == 0;
}

bool can_use_hardware(const Fp8Operand& a, const Fp8Operand& b) {
  return a.codes.is_cuda() && a.codes.dim() == 2 && a.has_one_scale() && b.has_one_scale() &&
         fits_hardware({a.codes.size(0), b.codes.size(1), a.codes.size(1)});
}

// The left operand has to be row-major there, the right one column-major.
at::Tensor hardware_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type) {
  return at::_scaled_mm(a.codes.contiguous(), b.codes.t().contiguous().t(), a.scale, b.scale, {},
                        {}, type, /*use_fast_accum=*/false);
}

double seconds_of(const std::function<void()>& work, at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.index());
  const auto start = std::chrono::steady_clock::now();
  work();
  guard.synchronizeDevice(device.index());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Both ways with operands of their own; the weight is ready, as it is in a step.
double time_on(at::Device device, const ProductShape& shape, ProductPath path) {
  const torch::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor x = at::ones({shape.rows, shape.inner}, options);
  const at::Tensor w = at::ones({shape.columns, shape.inner}, options);
  if (path == ProductPath::bf16) {
    return 1e6 * seconds_of([&] { at::mm(x, w.t()); }, device);
  }
  const auto quantized = [](const at::Tensor& values) {
    const at::Tensor scale = current_scale(values, FloatFormat::e4m3, Fp8Granularity::tensor, 0);
    return quantize_tensor(values, FloatFormat::e4m3, scale).operand;
  };
  const Fp8Operand weight = quantized(w).transposed();
  const auto work = [&] { fp8_product(quantized(x), weight, at::kBFloat16, Fp8Means::hardware); };
  return 1e6 * seconds_of(work, device);
}

}  // namespace

at::Tensor fp8_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                       Fp8Means means) {
  if (means == Fp8Means::hardware && can_use_hardware(a, b)) return hardware_product(a, b, type);
  return at::matmul(a.dequantized(), b.dequantized()).to(type);
}

bool has_fp8_hardware(at::Device device) try {
  if (!device.is_cuda()) return false;
  const torch::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor codes = at::ones({16, 16}, options).to(at::kFloat8_e4m3fn);
  const Fp8Operand one{codes, at::ones({1}, options)};
  return hardware_product(one, one, at::kBFloat16).to(at::kFloat).sum().item<float>() == 4096;
} catch (const std::exception&) {
  return false;
}

std::shared_ptr<Fp8Shapes> Fp8Shapes::of(at::Device device) {
  if (!has_fp8_hardware(device)) return nullptr;
  return std::make_shared<Fp8Shapes>([device](const ProductShape& shape, ProductPath path) {
    return fits_hardware(shape) || path == ProductPath::bf16
               ? time_on(device, shape, path)
               : std::numeric_limits<double>::infinity();
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
