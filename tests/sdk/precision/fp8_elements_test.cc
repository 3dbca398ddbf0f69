// The kernels' code for four values at a time, compiled for the host: bit for bit the CPU's loops.
#include "sdk/src/precision/fp8_elements.h"

#include <c10/util/Half.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "sdk/src/precision/float_codec.h"
#include "tests/sdk/precision/float_reference.h"

#include <doctest/doctest.h>

using cox::detail::FloatFormat;
using cox::detail::QuantizeCounts;
using cox::fp8::E4m3;
using cox::fp8::E5m2;

namespace {

constexpr FloatFormat format_of(E4m3) {
  return FloatFormat::e4m3;
}
constexpr FloatFormat format_of(E5m2) {
  return FloatFormat::e5m2;
}

// Returns every bf16: every exponent and both signs, NaN and infinities.
std::vector<float> every_bf16() {
  std::vector<float> values;
  for (std::uint32_t raw = 0; raw < 0x10000; ++raw) values.push_back(cox::fp8::bf16_value(raw));
  return values;
}

// Returns the floats at which casts decide: each code, the middle to the next, and the neighbours
// of both.
template <class Format>
std::vector<float> around_codes() {
  const auto place = static_cast<std::size_t>(format_of(Format()));
  const std::vector<double> all = codec_test::finite_values(codec_test::definitions()[place]);
  std::vector<float> values;
  for (std::size_t code = 0; code < all.size(); ++code) {
    const auto value = static_cast<float>(all[code]);
    const float next = code + 1 == all.size() ? value * 2 : static_cast<float>(all[code + 1]);
    for (const float edge : {value, (value + next) / 2}) {
      for (const float near : {std::nextafter(edge, 0.0F), edge, std::nextafter(edge, INFINITY)}) {
        values.push_back(near);
        values.push_back(-near);
      }
    }
  }
  values.push_back(464);
  values.push_back(61440);
  values.push_back(std::numeric_limits<float>::max());
  values.push_back(std::numeric_limits<float>::denorm_min());
  return values;
}

std::vector<float> random_bits(std::size_t count) {
  std::mt19937 generator(5);
  std::vector<float> values;
  while (values.size() < count) values.push_back(std::bit_cast<float>(std::uint32_t(generator())));
  return values;
}

struct Quantized {
  std::vector<std::uint8_t> codes;
  QuantizeCounts counts;
};

// Quantises four values at a time, like a kernel's thread. REQUIRES: the number of values is a
// multiple of 4.
template <class Format>
Quantized by_fours(const std::vector<float>& values, float multiplier) {
  Quantized result;
  cox::fp8::Counts seen;
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const float four[4] = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    const std::uint32_t codes = cox::fp8::four_codes<Format>(four, multiplier, seen);
    for (int k = 0; k < 4; ++k)
      result.codes.push_back(static_cast<std::uint8_t>(codes >> 8 * k & 0xFF));
  }
  result.counts = {values.size(), seen.saturated, seen.underflow, std::bit_cast<float>(seen.amax)};
  return result;
}

template <class Format>
Quantized by_loops(const std::vector<float>& values, float multiplier) {
  Quantized result;
  result.codes.resize(values.size());
  result.counts = cox::detail::quantize(format_of(Format()), values, multiplier, result.codes);
  return result;
}

template <class Format>
void check_all(std::vector<float> values) {
  values.resize(values.size() / 4 * 4 + 4);
  for (const float multiplier : {1.0F, 0x1p-100F, 0x1p-9F, 0.3F, 0x1p11F, 0x1p126F}) {
    CAPTURE(multiplier);
    const Quantized ours = by_fours<Format>(values, multiplier);
    const Quantized theirs = by_loops<Format>(values, multiplier);
    CHECK(ours.codes == theirs.codes);
    CHECK(ours.counts == theirs.counts);
  }
}

}  // namespace

TEST_SUITE("sdk.precision.fp8_elements") {
  TEST_CASE("four values get the codes and counts that the loops of the CPU give them") {
    for (const auto& values : {every_bf16(), random_bits(1 << 20)}) {
      check_all<E4m3>(values);
      check_all<E5m2>(values);
    }
    check_all<E4m3>(around_codes<E4m3>());
    check_all<E5m2>(around_codes<E5m2>());
  }

  TEST_CASE("a value among three zeros gets them too, so that ends of tensors are right") {
    for (const float value : every_bf16()) {
      const float four[4] = {value, 0, 0, 0};
      cox::fp8::Counts seen;
      const std::uint32_t code = cox::fp8::any_four_codes<E4m3>(four, 0.25F, seen);
      const Quantized loops = by_loops<E4m3>({value}, 0.25F);
      CHECK(code == loops.codes[0]);
      CHECK(QuantizeCounts{1, seen.saturated, seen.underflow, std::bit_cast<float>(seen.amax)} ==
            loops.counts);
    }
  }

  TEST_CASE("every fp16 becomes the float that it stands for, and a NaN keeps its sign") {
    for (std::uint32_t raw = 0; raw < 0x10000; ++raw) {
      const float ours = cox::fp8::fp16_value(raw);
      const float theirs = c10::Half(static_cast<std::uint16_t>(raw), c10::Half::from_bits());
      CHECK(std::isnan(ours) == std::isnan(theirs));
      CHECK(std::signbit(ours) == (raw >= 0x8000));
      if (!std::isnan(ours)) CHECK(ours == theirs);
    }
  }
}
