// N4: the gain of FP8 products over bf16 on a device, forward and backward, in blocks run unedited.
// For each shape of a linear product: the time in bf16 under LibTorch's autocast, the time in FP8
// with activations and gradients in bf16 and a weight in float, and the format chosen. Also the
// speed of the quantising kernels and of the hardware's products, and a block of Llama-8B's shapes.
//
//   bench_fp8 [--quick]        about 15 seconds of a device
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/device/choice.h"
#include "sdk/src/precision/fp8_operator.h"
#include "tests/bench/line.h"

namespace cox::bench {
namespace {

using namespace cox::detail;
using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Extent {
  int rounds;      // rounds of every way, by turns
  double seconds;  // in a round
};
constexpr Extent kFull{5, 0.02}, kQuick{2, 0.002};

// Runs this thread's products in FP8 if `block` takes them, else in bf16.
class Formats final : public OperatorListener {
 public:
  explicit Formats(const std::shared_ptr<Fp8Block>& block)
      : products_(std::make_unique<Fp8Products>(block)) {}
  bool has_formats() const override { return true; }
  std::optional<ProductFormat> product_format() const override {
    return ProductFormat{at::kBFloat16, products_.get()};
  }

 private:
  std::unique_ptr<Fp8Products> products_;
};

// Returns a block whose products run in FP8 whenever the hardware can, faster or not.
std::shared_ptr<Fp8Block> always_fp8() {
  const auto timer = [](const ProductShape& shape, ProductPath path) {
    if (path == ProductPath::bf16) return 2.0;
    return fits_hardware(shape) ? 1.0 : std::numeric_limits<double>::infinity();
  };
  return std::make_shared<Fp8Block>(Fp8Recipe{}, std::make_shared<Fp8Shapes>(timer));
}

// Runs a program forward and backward, and drains its counts as a step does.
std::function<void()> in_format(std::shared_ptr<Fp8Block> block, std::function<Tensor()> forward,
                                Tensors of, Tensor gradient) {
  const auto formats = std::make_shared<Formats>(block);
  return [=] {
    Tensor result;
    {
      const StreamScope shown({formats.get()});
      result = forward();
    }
    torch::autograd::grad({result}, of, {gradient});
    block->take_waiting();
  };
}

double seconds_of(at::Device device, const std::function<void()>& run, int times) {
  wait_for_current_stream(device);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) run();
  wait_for_current_stream(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / times;
}

// Returns the median microseconds of each way. The ways take turns, so that all meet the same clock
// rates.
std::vector<double> time_all(at::Device device, const std::vector<std::function<void()>>& ways,
                             const Extent& extent) {
  std::vector<int> times;
  for (const auto& way : ways) {
    seconds_of(device, way, 2);
    const double once = seconds_of(device, way, 2);
    times.push_back(std::clamp(static_cast<int>(extent.seconds / once), 2, 200));
  }
  std::vector<std::vector<double>> samples(ways.size());
  for (int round = 0; round < extent.rounds; ++round) {
    for (std::size_t w = 0; w < ways.size(); ++w)
      samples[w].push_back(1e6 * seconds_of(device, ways[w], times[w]));
  }
  std::vector<double> medians;
  for (auto& each : samples) medians.push_back(quantile(each, 0.5));
  return medians;
}

// Returns a tensor like an activation: no parameter, but with a gradient.
Tensor input(at::IntArrayRef sizes, at::Device device, at::ScalarType type) {
  return torch::randn(sizes, at::TensorOptions(device).requires_grad(true)).to(type) * 1.0;
}

Tensor weight(std::int64_t rows, std::int64_t columns, at::Device device) {
  const Tensor values = torch::randn({rows, columns}, at::TensorOptions(device));
  return values.mul_(1 / std::sqrt(static_cast<double>(columns))).requires_grad_();
}

void bench_shape(at::Device device, Fp8Shapes& shapes, const ProductShape& shape,
                 const Extent& extent) {
  const Tensor x = input({shape.rows, shape.inner}, device, at::kBFloat16);
  const Tensor w = weight(shape.columns, shape.inner, device);
  const Tensor g =
      torch::randn({shape.rows, shape.columns}, at::TensorOptions(device)).to(at::kBFloat16);
  const auto in_bf16 = [=] {
    torch::autograd::grad({at::linear(x, w.to(at::kBFloat16))}, {x, w}, {g});
  };
  const auto linear = [=] { return at::linear(x, w); };
  const auto us = time_all(device, {in_bf16, in_format(always_fp8(), linear, {x, w}, g)}, extent);
  const bool is_fp8 = shapes.best(shape) == ProductPath::fp8;
  Line("N4", us[0] / (is_fp8 ? us[1] : us[0]), "x")
      .limit(1.0, Better::higher)
      .with("what", "linear, forward and backward, over bf16")
      .with("m", static_cast<double>(shape.rows))
      .with("n", static_cast<double>(shape.columns))
      .with("k", static_cast<double>(shape.inner))
      .with("chosen", is_fp8 ? "fp8" : "bf16")
      .with("bf16_us", us[0])
      .with("fp8_us", us[1])
      .print();
}

// Prints the rate of necessary bytes moved.
void bench_kernels(at::Device device, const Extent& extent) {
  const torch::NoGradGuard no_grad;
  constexpr std::int64_t kRows = 8192, kColumns = 14336;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor values = torch::randn({kRows, kColumns}, at::TensorOptions(device)).to(type);
    const Tensor scale = current_scale(values, FloatFormat::e4m3, Fp8Granularity::tensor, 0);
    const auto given = [&](Fp8Order order) {
      return [=] { quantize_tensor(values, FloatFormat::e4m3, scale, order); };
    };
    const auto own = [=] {
      quantize_tensor(values, FloatFormat::e4m3, Fp8Granularity::tensor, 0, Fp8Order::both);
    };
    const auto by_torch = [=] {
      quantize_by_torch(values, FloatFormat::e4m3,
                        scales_by_torch(values, FloatFormat::e4m3, Fp8Granularity::tensor, 0));
    };
    const auto us =
        time_all(device, {given(Fp8Order::rows), given(Fp8Order::both), own, by_torch}, extent);
    const double size = static_cast<double>(values.element_size());
    const double read = size * kRows * kColumns, code = 1.0 * kRows * kColumns;
    struct Case {
      const char* what;
      double bytes;
      double us;
    };
    for (const Case& each :
         {Case{"amax", read, us[2] - us[1]}, Case{"codes by a given scale", read + code, us[0]},
          Case{"codes in both orders by a given scale", read + 2 * code, us[1]},
          Case{"amax and codes in both orders", 2 * read + 2 * code, us[2]},
          Case{"amax and codes, by torch's operations", 2 * read + code, us[3]}}) {
      Line("N4", each.bytes / each.us / 1e3, "GB/s")
          .better(Better::higher)
          .with("what", each.what)
          .with("values", type == at::kFloat ? "fp32" : "bf16")
          .with("rows", static_cast<double>(kRows))
          .with("columns", static_cast<double>(kColumns))
          .with("us", each.us)
          .print();
    }
  }
}

// Times products alone, with operands ready.
void bench_products(at::Device device, const Extent& extent) {
  const torch::NoGradGuard no_grad;
  constexpr std::int64_t kRows = 8192, kColumns = 14336, kInner = 4096;
  const auto operand = [&](std::int64_t rows, std::int64_t columns, FloatFormat format) {
    const Tensor values = torch::randn({rows, columns}, at::TensorOptions(device));
    return quantize_tensor(values, format, Fp8Granularity::tensor, 0, Fp8Order::both).operand;
  };
  const Fp8Operand x = operand(kRows, kInner, FloatFormat::e4m3);
  const Fp8Operand w = operand(kColumns, kInner, FloatFormat::e4m3);
  const Fp8Operand g = operand(kRows, kColumns, FloatFormat::e5m2);
  const Tensor wide_x = x.dequantized().to(at::kBFloat16);
  const Tensor wide_w = w.dequantized().to(at::kBFloat16).t();
  const auto product = [](const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                          Fp8Sums sums) {
    return [=] { fp8_product(a, b, type, Fp8Means::hardware, sums); };
  };
  struct Case {
    const char* what;
    std::function<void()> run;
  };
  const auto narrow = at::kBFloat16;
  const Case cases[] = {
      {"bf16", [=] { at::mm(wide_x, wide_w); }},
      {"result, fast sums", product(x, w.transposed(), narrow, Fp8Sums::fast)},
      {"result, full sums", product(x, w.transposed(), narrow, Fp8Sums::full)},
      {"gradient of x, fast sums", product(g, w, narrow, Fp8Sums::fast)},
      {"gradient of x, full sums", product(g, w, narrow, Fp8Sums::full)},
      {"gradient of the weight in float, fast sums",
       product(g.transposed(), x, at::kFloat, Fp8Sums::fast)},
      {"gradient of the weight in float, full sums",
       product(g.transposed(), x, at::kFloat, Fp8Sums::full)},
  };
  std::vector<std::function<void()>> runs;
  for (const Case& each : cases) runs.push_back(each.run);
  const auto us = time_all(device, runs, extent);
  for (std::size_t i = 0; i < us.size(); ++i) {
    Line("N4", 2e-6 * kRows * kColumns * kInner / us[i], "TFLOP/s")
        .better(Better::higher)
        .with("what", "product alone")
        .with("product", cases[i].what)
        .with("us", us[i])
        .print();
  }
}

int run(Effort effort) {
  const Extent extent = effort == Effort::quick ? kQuick : kFull;
  const at::Device device = require(choose_device(DeviceSetting::cuda, find_cuda(), 0));
  make_current(device);
  const auto began = std::chrono::steady_clock::now();
  const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(device);
  if (!shapes)
    throw Error(failed_precondition("expected a device that multiplies FP8, found none"));
  const auto kernels = Fp8Kernels::of(device, at::kFloat);
  static_cast<void>(Fp8Kernels::of(device, at::kBFloat16));
  Line("N4", std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), "s")
      .with("what", "trying the hardware and compiling the kernels, once a process")
      .with("kernels", kernels.ok() ? "compiled" : kernels.status().text())
      .print();
  if (effort == Effort::full) {
    bench_kernels(device, extent);
    bench_products(device, extent);
  }
  std::vector<ProductShape> all = {
      {768, 768, 768}, {1024, 2304, 768}, {100, 96, 64}, {4096, 50, 768}};
  if (effort == Effort::full) {
    for (const std::int64_t tokens : {8192, 2048}) {
      for (const auto& [columns, inner] :
           {std::pair{4096, 4096}, {1024, 4096}, {14336, 4096}, {4096, 14336}})
        all.push_back({tokens, columns, inner});
    }
    for (const auto& [columns, inner] :
         {std::pair{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}})
      all.push_back({8192, columns, inner});
    all.push_back({8192, 128256, 4096});
  }
  for (const ProductShape& shape : all) bench_shape(device, *shapes, shape, extent);
  return 0;
}

}  // namespace
}  // namespace cox::bench

int main(int argc, char** argv) try {
  return cox::bench::run(cox::bench::effort_of(argc, argv));
} catch (const std::exception& error) {
  return cox::report(error);
}
