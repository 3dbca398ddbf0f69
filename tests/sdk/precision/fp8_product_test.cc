// Casts, scales and products of tensors in FP8, against torch's own and against definitions.
#include <ATen/cpu/Utils.h>
#include <torch/torch.h>

#include <bit>
#include <cmath>

#include "sdk/src/precision/fp8_block.h"
#include "tests/sdk/precision/fp8_counts.h"

#include <doctest/doctest.h>

namespace {

using namespace cox::detail;
using at::Tensor;
using cox::Fp8Granularity;

constexpr FloatFormat kEight[] = {FloatFormat::e4m3, FloatFormat::e5m2};

Tensor bytes(const Tensor& codes) {
  return codes.contiguous().view(at::kByte);
}

bool same(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && at::equal(bytes(a), bytes(b));
}

Fp8Operand quantized(const Tensor& values, FloatFormat format,
                     Fp8Granularity granularity = Fp8Granularity::tensor) {
  return quantize_tensor(values, format, current_scale(values, format, granularity, 0)).operand;
}

// Returns floats of random bits, including NaN and infinities.
Tensor random_bits(std::int64_t count) {
  at::manual_seed(5);
  return at::randint(INT32_MIN, INT32_MAX, {count}, at::kInt).view(at::kFloat);
}

}  // namespace

TEST_SUITE("sdk.precision.fp8_product") {
  TEST_CASE(
      "codes decode as torch decodes them, and floats in range are cast as torch casts them") {
    for (const FloatFormat format : kEight) {
      CAPTURE(static_cast<int>(format));
      const Tensor codes = at::arange(256, at::kByte).view(fp8_type(format)).repeat({3});
      const Tensor ours = Fp8Operand{codes, at::ones({1})}.dequantized();
      CHECK(at::allclose(ours, codes.to(at::kFloat), 0, 0, /*equal_nan=*/true));
      const Tensor bits = random_bits(1 << 20);
      const Tensor small = at::where(bits.abs() <= largest_finite(format), bits, 1.0);
      CHECK(same(quantize_tensor(small, format, at::ones({1})).operand.codes,
                 small.to(fp8_type(format))));
    }
  }

  TEST_CASE("the loops of the CPU and torch's operations quantise to the same codes and counts") {
    at::manual_seed(1);
    Tensor values = at::randn({37, 83}) * at::exp(at::randn({37, 83}) * 4);
    values[3][4] = std::nan("");
    values[5][6] = INFINITY;
    values[7].zero_();
    values[8].fill_(448);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor typed = values.to(type);
      for (const FloatFormat format : kEight) {
        for (const Fp8Granularity rows : {Fp8Granularity::tensor, Fp8Granularity::row}) {
          for (const std::uint32_t margin : {0u, 3u}) {
            const Tensor scale = current_scale(typed, format, rows, margin);
            CHECK(at::equal(scale, scales_by_torch(typed, format, rows, margin)));
            CHECK(scale.numel() == (rows == Fp8Granularity::row ? 37 : 1));
          }
          // These scales clip some values.
          const Tensor scale = current_scale(typed, format, rows, 0) / 16;
          const Fp8Quantized loops = quantize_tensor(typed, format, scale);
          const Fp8Quantized torch = quantize_by_torch(typed, format, scale);
          const Tensor ours = loops.operand.dequantized();
          const Tensor theirs = torch.operand.dequantized();
          CHECK(at::equal(at::nan_to_num(ours, 12345.0), at::nan_to_num(theirs, 12345.0)));
          const QuantizeCounts counts = fp8_test::counts_of(loops.seen);
          CHECK(counts == fp8_test::counts_of(torch.seen));
          CHECK(counts.saturated > 0);
        }
      }
    }
  }

  TEST_CASE("a scale of its own clips nothing and loses at most half a unit in the last place") {
    at::manual_seed(2);
    for (const float size : {1e-30f, 1e-3f, 1.0f, 1e30f}) {
      const Tensor values = at::rand({64, 64}).add_(0.25) * size;
      for (const FloatFormat format : kEight) {
        const Tensor scale = current_scale(values, format, Fp8Granularity::tensor, 0);
        const Fp8Quantized result = quantize_tensor(values, format, scale);
        CHECK(result.seen.counts.saturated == 0);
        CHECK(result.seen.counts.amax == values.max().item<float>());
        const Tensor error = (result.operand.dequantized() - values).abs() / values;
        const double half = std::ldexp(0.5, -(format == FloatFormat::e4m3 ? 3 : 2));
        CHECK(error.max().item<double>() <= half * 1.000001);
      }
    }
  }

  TEST_CASE("tensors that are no contiguous floats are quantised by value; none at all, too") {
    const Tensor wide = at::randn({12, 20});
    const Tensor one = at::ones({1});
    const auto codes = [&](const Tensor& t) {
      return quantize_tensor(t, FloatFormat::e4m3, one).operand.codes;
    };
    CHECK(same(codes(wide.t()), codes(wide.t().contiguous())));
    CHECK(same(codes(wide.slice(1, 3, 9)), codes(wide.slice(1, 3, 9).contiguous())));
    CHECK(same(codes(one.expand({3, 5})), codes(at::ones({3, 5}))));
    CHECK(codes(at::empty({0, 5})).sizes() == at::IntArrayRef({0, 5}));
    CHECK(current_scale(at::empty({0, 5}), FloatFormat::e4m3, Fp8Granularity::row, 0).numel() == 1);
  }

  TEST_CASE("the emulated product equals torch's _scaled_mm on the CPU bit for bit") {
    at::manual_seed(3);
    // With AMX, torch multiplies by oneDNN, which adds in another order.
    const bool has_amx = at::cpu::init_amx();
    constexpr std::int64_t kShapes[][3] = {{1, 1, 1},    {16, 16, 16},  {5, 7, 3},
                                           {64, 48, 32}, {33, 65, 129}, {128, 256, 192}};
    for (const auto& [m, n, k] : kShapes) {
      for (const auto& [left, right] :
           {std::pair{kEight[0], kEight[0]}, std::pair{kEight[1], kEight[0]}}) {
        const Fp8Operand a = quantized(at::randn({m, k}) * 3, left);
        const Fp8Operand b = quantized(at::randn({n, k}) * 0.1, right).transposed();
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const Tensor theirs = at::_scaled_mm(a.codes, b.codes, a.scale, b.scale, {}, {}, type);
          const Tensor ours = fp8_product(a, b, type, Fp8Means::emulation);
          CHECK((has_amx ? at::allclose(ours, theirs, 1e-2, 1e-2) : same(ours, theirs)));
          CHECK(same(fp8_product(a, b, type, Fp8Means::hardware), ours));  // the CPU has none
        }
      }
    }
  }

  TEST_CASE("scales by row are applied row by row") {
    at::manual_seed(4);
    const Tensor x = at::randn({6, 10}) * at::logspace(-6, 6, 6).unsqueeze(1);
    const Tensor w = at::randn({4, 10}) * at::logspace(-3, 3, 4).unsqueeze(1);
    const Fp8Operand a = quantized(x, FloatFormat::e4m3, Fp8Granularity::row);
    const Fp8Operand b = quantized(w, FloatFormat::e4m3, Fp8Granularity::row);
    const Tensor product = fp8_product(a, b.transposed(), at::kFloat, Fp8Means::emulation);
    const Tensor exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
    const Tensor size = at::mm(x.abs().to(at::kDouble), w.abs().to(at::kDouble).t());
    CHECK(((product - exact).abs() / size).max().item<double>() < 0.13);
    for (std::int64_t row = 0; row < 6; ++row) {
      const Fp8Operand alone = quantized(x.slice(0, row, row + 1), FloatFormat::e4m3);
      CHECK(same(a.codes.slice(0, row, row + 1), alone.codes));
      CHECK(a.scale[row].item<float>() == alone.scale.item<float>());
    }
  }

  TEST_CASE("a shape is measured once each way, and the least of the runs decides") {
    std::vector<ProductPath> asked;
    std::vector<double> times = {9, 5, 7, 8, 6, 9};  // fp8: least 5; bf16: least 6
    const auto timer = [&](const ProductShape&, ProductPath path) {
      asked.push_back(path);
      return times.at(asked.size() - 1);
    };
    Fp8Shapes shapes(timer, 3);
    CHECK(shapes.best({16, 32, 64}) == ProductPath::fp8);
    CHECK(shapes.best({16, 32, 64}) == ProductPath::fp8);
    CHECK(asked.size() == 6);
    asked.clear();
    times = {9, 9, 9, 20, 9, 20};  // equal times: no gain
    CHECK(shapes.best({32, 16, 64}) == ProductPath::bf16);
    CHECK(shapes.best({32, 16, 64}) == ProductPath::bf16);
    CHECK(shapes.best({16, 32, 64}) == ProductPath::fp8);
    CHECK(asked.size() == 6);
  }

  TEST_CASE("the CPU has no FP8 hardware, so nothing is measured there") {
    CHECK_FALSE(has_fp8_hardware(at::kCPU));
    CHECK(Fp8Shapes::of(at::kCPU) == nullptr);
  }
}
