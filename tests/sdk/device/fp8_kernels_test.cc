// Quantised tensors on a device, by kernels if it has them, else by torch's operations: codes,
// scales and counts equal the CPU's to the last bit. The stand-ins have no kernels, so they test
// torch's operations.
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sdk/src/precision/fp8_tensors.h"
#include "tests/sdk/precision/fp8_counts.h"

#include <doctest/doctest.h>

using cox::Fp8Granularity;
using cox::detail::current_scale;
using cox::detail::FloatFormat;
using cox::detail::Fp8Kernels;
using cox::detail::Fp8Order;
using cox::detail::Fp8Quantized;
using cox::detail::quantize_tensor;
using cox::detail::QuantizeCounts;
using fp8_test::counts_of;

namespace {

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr std::array kFormats = {FloatFormat::e4m3, FloatFormat::e5m2};

bool has_kernels(at::ScalarType type) {
  const auto kernels = Fp8Kernels::of(at::kCUDA, type);
  if (!kernels.ok()) MESSAGE("without kernels: ", kernels.status().text());
  return kernels.ok();
}

// Torch's operations support one order only.
std::vector<Fp8Order> orders(bool has_some) {
  if (has_some) return {Fp8Order::rows, Fp8Order::both};
  return {Fp8Order::both};
}

bool same_codes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() &&
         at::equal(a.cpu().contiguous().view(at::kByte), b.cpu().contiguous().view(at::kByte));
}

void check_same(const Fp8Quantized& there, const Fp8Quantized& here) {
  CHECK(same_codes(there.operand.codes, here.operand.codes));
  CHECK(there.operand.codes.is_contiguous());
  CHECK(at::equal(there.operand.scale.cpu(), here.operand.scale));
  CHECK(counts_of(there.seen) == counts_of(here.seen));
  if (there.operand.turned.defined()) {
    CHECK(same_codes(there.operand.turned, here.operand.codes));
    CHECK(there.operand.turned.t().is_contiguous());
  }
}

// The device's values are `view`; the CPU's are a copy.
void check_view(const at::Tensor& view, FloatFormat format, Fp8Order order) {
  const at::Tensor copy = view.cpu();
  const auto tensor = Fp8Granularity::tensor;
  for (const std::uint32_t margin : {0U, 5U}) {
    check_same(quantize_tensor(view, format, tensor, margin, order),
               quantize_tensor(copy, format, tensor, margin));
  }
  // Foreign scales: some clip values, some flush values to zero, some are no power of two.
  const at::Tensor own = current_scale(copy, format, tensor, 0);
  for (const float factor : {1.0F, 1.0F / 64, 4096.0F, 0.3F}) {
    const at::Tensor scale = own * factor;
    if (!std::isfinite(scale.item<float>())) continue;
    check_same(quantize_tensor(view, format, scale.to(view.device()), order),
               quantize_tensor(copy, format, scale));
  }
}

// Returns values of many magnitudes.
at::Tensor some_values(at::IntArrayRef sizes) {
  return at::randn(sizes) * at::exp(at::randn(sizes) * 4);
}

}  // namespace

TEST_CASE("every size is quantised on the device with the bits of the CPU, in both orders") {
  const torch::NoGradGuard no_grad;
  at::manual_seed(1);
  constexpr std::int64_t kShapes[][2] = {{1, 1},     {1, 3},      {5, 7},      {16, 16}, {16, 48},
                                         {48, 16},   {80, 112},   {64, 64},    {33, 65}, {1, 4097},
                                         {128, 256}, {208, 1040}, {1040, 208}, {7, 999}};
  for (const at::ScalarType type : kTypes) {
    const bool kernels = has_kernels(type);
    for (const auto& [rows, columns] : kShapes) {
      CAPTURE(rows);
      CAPTURE(columns);
      const at::Tensor values = some_values({rows, columns}).to(type).to(at::kCUDA);
      for (const FloatFormat format : kFormats) {
        for (const Fp8Order order : orders(kernels)) check_view(values, format, order);
        const bool turns = kernels && rows % 16 == 0 && columns % 16 == 0;
        const auto made =
            quantize_tensor(values, format, Fp8Granularity::tensor, 0, Fp8Order::both);
        CHECK(made.operand.turned.defined() == turns);
      }
    }
  }
}

TEST_CASE("NaN, infinities, zeros and the smallest values are quantised as on the CPU") {
  const torch::NoGradGuard no_grad;
  at::manual_seed(2);
  at::Tensor special =
      at::tensor({0.0F,   -0.0F,    INFINITY, -INFINITY, 448.0F,          -448.0F,  464.0F,
                  465.0F, 57344.0F, 61440.0F, -61440.0F, 61439.0F,        1e-45F,   -1e-45F,
                  1e-38F, 3e38F,    -3e38F,   0x1p-10F,  0x1.000002p-10F, 0x1p-17F, -0x1p-9F});
  const at::Tensor signs = at::tensor({0x7FC00000, static_cast<int>(0xFFC00000U)}, at::kInt);
  special = at::cat({special, signs.view(at::kFloat)});
  for (const at::ScalarType type : kTypes) {
    const bool kernels = has_kernels(type);
    const at::Tensor picked = special.index({at::randint(0, special.numel(), {64 * 80})});
    at::Tensor few = some_values({64, 80});
    few.view(-1).index_put_({at::tensor({7, 4000})}, special.slice(0, 2, 4));
    for (const at::Tensor& each : {picked.view({64, 80}), few, at::zeros({32, 32}),
                                   at::full({32, 32}, -INFINITY), at::full({16, 16}, std::nanf("")),
                                   at::full({16, 32}, 1e-45F), at::full({32, 16}, 3e38F)}) {
      const at::Tensor values = each.to(type).to(at::kCUDA);
      for (const FloatFormat format : kFormats) {
        for (const Fp8Order order : orders(kernels)) check_view(values, format, order);
      }
    }
  }
}

TEST_CASE("every bf16 and every fp16 gets the CPU's code") {
  const torch::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const bool kernels = has_kernels(type);
    const at::Tensor all =
        at::arange(65536, at::kInt).to(at::kShort).view(type).view({256, 256}).to(at::kCUDA);
    for (const FloatFormat format : kFormats) {
      for (const Fp8Order order : orders(kernels)) check_view(all, format, order);
    }
  }
}

TEST_CASE("views that are not dense or begin between 16 bytes are quantised by value") {
  const torch::NoGradGuard no_grad;
  at::manual_seed(3);
  for (const at::ScalarType type : kTypes) {
    const bool kernels = has_kernels(type);
    const at::Tensor wide = some_values({64, 96}).to(type).to(at::kCUDA);
    for (const at::Tensor& view :
         {wide.t(), wide.slice(1, 3, 51), wide.slice(0, 1, 33),
          wide[5].slice(0, 1, 81).view({5, 16}), wide.view(-1).slice(0, 1, 1025).view({32, 32}),
          wide.select(1, 3).view({1, 64}).expand({16, 64}), wide.view({4, 16, 96})}) {
      for (const FloatFormat format : kFormats) {
        for (const Fp8Order order : orders(kernels)) check_view(view, format, order);
      }
    }
  }
}

TEST_CASE("no values at all have a scale of one and no codes") {
  const torch::NoGradGuard no_grad;
  for (const Fp8Order order : {Fp8Order::rows, Fp8Order::both}) {
    const at::Tensor none = at::empty({0, 16}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
    const auto made = quantize_tensor(none, FloatFormat::e4m3, Fp8Granularity::tensor, 0, order);
    CHECK(made.operand.codes.sizes() == at::IntArrayRef({0, 16}));
    CHECK(made.operand.scale.item<float>() == 1);
    CHECK(made.seen.counts == cox::detail::QuantizeCounts());
  }
}

TEST_CASE("a large tensor with one large value, which is found wherever it is") {
  const torch::NoGradGuard no_grad;
  at::manual_seed(4);
  const at::Tensor values = at::randn({1024, 1536}).to(at::kCUDA);
  has_kernels(at::kFloat);
  for (const std::int64_t place : {0L, 1L, 255L, 256L, 4095L, 786432L, 1572863L}) {
    CAPTURE(place);
    at::Tensor one = values.clone();
    one.view(-1)[place] = -1e6F;
    const auto made =
        quantize_tensor(one, FloatFormat::e5m2, Fp8Granularity::tensor, 0, Fp8Order::both);
    CHECK(counts_of(made.seen).amax == 1e6F);
    check_view(one, FloatFormat::e4m3, Fp8Order::both);
  }
}
