#include "sdk/src/precision/fp8_shapes.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace cox::detail {
namespace {

// REQUIRES: `device` has an index, as that of a tensor has.
double seconds_of(const std::function<void()>& work, at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.index());
  const auto start = std::chrono::steady_clock::now();
  work();
  guard.synchronizeDevice(device.index());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Values between -1 and 1 that look random and draw from no generator of the program's: a device
// takes more power, and more time, to multiply those than to multiply ones.
at::Tensor some_values(std::int64_t rows, std::int64_t columns, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor down = at::arange(rows, options).mul_(0.7390851F).unsqueeze(1);
  return (down + at::arange(columns, options).mul_(1.3219281F)).sin_();
}

// What a step does for a product forward and backward, with every cast: x [M, K] and the gradient
// [M, N] come in bf16, the weight [N, K] in float.
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

// One run may be shorter than its launches take, so runs follow each other without a wait, for
// about that long.
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

std::shared_ptr<Fp8Shapes> Fp8Shapes::of(at::Device device) {
  if (!has_fp8_hardware(device)) return nullptr;
  return std::make_shared<Fp8Shapes>([device](const ProductShape& shape, ProductPath path) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    if (path == ProductPath::fp8 && !fits_hardware(shape)) return kNever;
    try {
      return time_on(device, shape, path);
    } catch (const c10::OutOfMemoryError&) {
      return kNever;  // what there is no room to time is left to bf16
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
