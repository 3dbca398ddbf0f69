// FP8 products on the device's own units. The stand-in has them as LibTorch's kernel for the CPU,
// which is slower than a product in bf16 there, so by speed none would be chosen.
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>

#include "sdk/src/precision/fp8_block.h"
#include "small_text.h"

#include <doctest/doctest.h>

using cox::Fp8Granularity;
using cox::detail::current_scale;
using cox::detail::FloatFormat;
using cox::detail::fp8_product;
using cox::detail::Fp8Means;
using cox::detail::Fp8Operand;
using cox::detail::ProductShape;
using cox::detail::quantize_tensor;

namespace {

std::atomic<int> scaled_products{0};
std::atomic<bool> is_bf16_slow{false};

thread_local int scaled_depth = 0;  // the CPU's kernel is made of a product of floats

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

// While it lives, products on the units of the device are counted, and others may be slow.
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

Fp8Operand on_device(const Fp8Operand& operand) {
  return {operand.codes.to(at::kCUDA), operand.scale.to(at::kCUDA)};
}

}  // namespace

TEST_CASE("a product on the device's units has the bits of the one that the CPU emulates") {
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
    CHECK(there.equal(here));
  }
}

TEST_CASE("products that are faster on the device's units are taken there, with the CPU's bits") {
  constexpr int kSteps = 3, kBlocks = 3, kLayers = 4, kEach = 3;  // a product and two gradients
  Training training{{"--cox.precision.format=fp8"}};
  training.options.steps = kSteps;
  training.vocabulary = 64;  // units take multiples of 16
  const Trained here = train_on("cpu", training);
  const ProductsSeen seen(true);
  const Trained there = train_on("cuda", training);
  CHECK(seen.scaled() >= kSteps * kBlocks * kLayers * kEach);
  CHECK(there.losses == here.losses);
  CHECK(count_unequal(there.parameters, here.parameters) == 0);
}
