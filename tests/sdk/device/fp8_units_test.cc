// FP8 products on the device's own units. The stand-in uses LibTorch's CPU kernel, which is slower
// than a bf16 product, so speed would never choose it. A real device adds in another order and with
// fewer bits, so only the stand-in gives the CPU's bits.
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>

#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/fp8_operator.h"
#include "small_text.h"
#include "tests/sdk/precision/fp8_counts.h"

#include <doctest/doctest.h>

using cox::Fp8Granularity;
using cox::detail::current_scale;
using cox::detail::FloatFormat;
using cox::detail::fp8_product;
using cox::detail::Fp8Means;
using cox::detail::Fp8Operand;
using cox::detail::Fp8Order;
using cox::detail::Fp8Sums;
using cox::detail::ProductShape;
using cox::detail::quantize_tensor;

namespace {

std::atomic<int> scaled_products{0};
std::atomic<bool> is_bf16_slow{false};

thread_local int scaled_depth = 0;  // the CPU's kernel calls a product of floats

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  if (name == "aten::_scaled_mm") {
    ++scaled_products;
    ++scaled_depth;
  }
  if (name == "aten::mm" && is_bf16_slow && scaled_depth == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return nullptr;
}

void end(const at::RecordFunction& call, at::ObserverContext*) {
  if (std::string_view(call.name()) == "aten::_scaled_mm") --scaled_depth;
}

// Counts products on the device's units during its lifetime, and can slow down the others.
class ProductsSeen {
 public:
  explicit ProductsSeen(bool with_slow_bf16)
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end))) {
    scaled_products = 0;
    is_bf16_slow = with_slow_bf16;
  }
  ~ProductsSeen() { at::removeCallback(handle_); }
  ProductsSeen(const ProductsSeen&) = delete;
  ProductsSeen& operator=(const ProductsSeen&) = delete;
  int scaled() const { return scaled_products; }

 private:
  at::CallbackHandle handle_;
};

Fp8Operand quantized(const at::Tensor& values, FloatFormat format) {
  const at::Tensor scale = current_scale(values, format, Fp8Granularity::tensor, 0);
  return quantize_tensor(values, format, scale).operand;
}

// Returns whether a product has the bits of `here`, or, on a real device, is within the error of
// its sums.
bool is_product(const at::Tensor& there, const at::Tensor& here, const Fp8Operand& a,
                const Fp8Operand& b) {
  if (on_stand_in()) return there.equal(here);
  const at::Tensor sums = at::matmul(a.dequantized().abs(), b.dequantized().abs());
  const at::Tensor error = (there.to(at::kFloat) - here.to(at::kFloat)).abs();
  const double rounding = here.scalar_type() == at::kFloat ? 0 : 0x1p-7;
  return (error <= sums * 0x1p-10 + here.to(at::kFloat).abs() * rounding).all().item<bool>();
}

// Returns the norm of the difference relative to the norm of the whole.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kCPU, at::kFloat);
  return ((a.to(at::kCPU, at::kFloat) - wide).norm() / wide.norm()).item<double>();
}

Fp8Operand on_device(const Fp8Operand& operand) {
  return {operand.codes.to(at::kCUDA), operand.scale.to(at::kCUDA)};
}

// Runs the products of a program in FP8.
class InFp8 final : public cox::detail::OperatorListener {
 public:
  explicit InFp8(std::shared_ptr<cox::detail::Fp8Block> block) : products_(std::move(block)) {}
  std::optional<cox::detail::ProductFormat> product_format() const override {
    return cox::detail::ProductFormat{at::kBFloat16, &products_};
  }

 private:
  mutable cox::detail::Fp8Products products_;
};

}  // namespace

TEST_CASE("a product on the device's units is the one that the CPU emulates") {
  struct Case {
    FloatFormat left;
    at::ScalarType type;
    ProductShape shape;
    int on_units;
  };
  const Case cases[] = {{FloatFormat::e4m3, at::kFloat, {16, 16, 16}, 1},
                        {FloatFormat::e5m2, at::kFloat, {32, 64, 48}, 1},
                        {FloatFormat::e4m3, at::kBFloat16, {32, 16, 64}, 1},
                        {FloatFormat::e4m3, at::kFloat, {16, 8, 16}, 0},
                        {FloatFormat::e5m2, at::kFloat, {16, 16, 17}, 0}};
  at::manual_seed(4);
  const torch::NoGradGuard no_grad;
  for (const Case& each : cases) {
    const auto [rows, columns, inner] = each.shape;
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(inner);
    const Fp8Operand a = quantized(at::randn({rows, inner}) * 100, each.left);
    const Fp8Operand b = quantized(at::randn({columns, inner}), FloatFormat::e4m3).transposed();
    const at::Tensor here = fp8_product(a, b, each.type, Fp8Means::emulation);
    const ProductsSeen seen(false);
    const at::Tensor there =
        fp8_product(on_device(a), on_device(b), each.type, Fp8Means::hardware).cpu();
    CHECK(seen.scaled() == each.on_units);
    CHECK((there.scalar_type() == each.type));
    CHECK(is_product(there, here, a, b));
  }
}

TEST_CASE("the products of a step, of codes in either order, are those that the CPU emulates") {
  at::manual_seed(6);
  const torch::NoGradGuard no_grad;
  const at::Tensor x = at::randn({64, 96}), w = at::randn({48, 96}), g = at::randn({64, 48});
  const auto both_ways = [](const at::Tensor& values, FloatFormat format) {
    const auto granularity = Fp8Granularity::tensor;
    return std::array{
        quantize_tensor(values.to(at::kCUDA), format, granularity, 0, Fp8Order::both).operand,
        quantize_tensor(values, format, granularity, 0).operand};
  };
  const auto xs = both_ways(x, FloatFormat::e4m3);
  const auto ws = both_ways(w, FloatFormat::e4m3);
  const auto gs = both_ways(g, FloatFormat::e5m2);
  const auto products = [&](std::size_t i, Fp8Means means) {
    return std::array{fp8_product(xs[i], ws[i].transposed(), at::kFloat, means, Fp8Sums::fast),
                      fp8_product(gs[i], ws[i], at::kFloat, means),
                      fp8_product(gs[i].transposed(), xs[i], at::kFloat, means)};
  };
  const auto there = products(0, Fp8Means::hardware);
  const auto here = products(1, Fp8Means::emulation);
  CHECK(is_product(there[0].cpu(), here[0], xs[1], ws[1].transposed()));
  CHECK(is_product(there[1].cpu(), here[1], gs[1], ws[1]));
  CHECK(is_product(there[2].cpu(), here[2], gs[1].transposed(), xs[1]));
}

TEST_CASE("a Linear on a device takes narrow values and gives narrow results, near the CPU's") {
  at::manual_seed(8);
  const at::Tensor x = at::randn({32, 64}), g = at::randn({32, 48});
  const at::Tensor w = at::randn({48, 64}), bias = at::randn({48});
  const auto run = [&](at::Device device, at::ScalarType type) {
    const auto block = std::make_shared<cox::detail::Fp8Block>(cox::detail::Fp8Recipe{});
    const at::Tensor leaf = x.to(device, type).detach().requires_grad_();
    const at::Tensor its_w = w.to(device).detach().requires_grad_();
    const at::Tensor its_bias = bias.to(device).detach().requires_grad_();
    InFp8 products(block);
    at::Tensor y;
    {
      const cox::detail::StreamScope shown({&products});
      y = at::linear(leaf * 1, its_w, its_bias);
    }
    auto values =
        torch::autograd::grad({y}, {leaf, its_w, its_bias}, {g.to(device, y.scalar_type())});
    values.push_back(y.detach());
    CHECK(fp8_test::take_counts(block).sampled ==
          static_cast<std::uint64_t>(x.numel() + g.numel()));
    return values;
  };
  const auto here = run(at::kCPU, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto there = run(at::Device(at::kCUDA, 0), type);
    CHECK((there[0].scalar_type() == type));
    CHECK((there[1].scalar_type() == at::kFloat));
    CHECK((there[2].scalar_type() == at::kFloat));
    CHECK((there[3].scalar_type() == at::kBFloat16));
    for (std::size_t i = 0; i < there.size(); ++i) CHECK(distance(there[i], here[i]) < 0.03);
  }
}

TEST_CASE(
    "products that are faster on the device's units are taken there, and train as the CPU's") {
  constexpr int kSteps = 3, kBlocks = 3, kLayers = 4, kEach = 3;  // a product and two gradients
  Training training{{"--cox.precision.format=fp8"}};
  training.options.steps = kSteps;
  training.vocabulary = 64;  // units take multiples of 16
  const Trained here = train_on("cpu", training);
  const ProductsSeen seen(true);
  const Trained there = train_on("cuda", training);
  CHECK(seen.scaled() >= kSteps * kBlocks * kLayers * kEach);
  REQUIRE(there.losses.size() == here.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    CHECK(there.losses[i] == doctest::Approx(here.losses[i]).epsilon(0.01));
}
