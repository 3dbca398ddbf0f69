// The codecs against the formats' definitions, at every float at a border of codes and at one of 61
// between them. `scripts/bench N1` tests every float.
#include "sdk/src/precision/float_codec.h"

#include <algorithm>
#include <random>

#include "tests/sdk/precision/codec_comparison.h"

#include <doctest/doctest.h>

namespace {

using namespace codec_test;
using namespace cox::detail;

// Odd, so that all patterns of the lower bits occur.
constexpr std::uint32_t kStride = 61;

// Tests every NaN, and both infinities.
bool keeps_nan_and_infinity(const Definition& format) {
  constexpr std::uint32_t kBatch = 1u << 16;
  std::vector<float> values(kBatch);
  for (const std::uint32_t sign : {0u, 1u}) {
    for (std::uint32_t first = kInfinityBits; first < 1u << 31; first += kBatch) {
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        values[i] = std::bit_cast<float>((first + i) | (sign << 31));
      }
      const std::vector<std::uint8_t> codes = codes_of(format.format, values);
      const bool begins = first == kInfinityBits;
      if (begins && codes[0] != (format.infinity() | sign << 7)) return false;
      if (!std::all_of(codes.begin() + begins, codes.end(), [&](std::uint8_t code) {
            return format.is_nan(code) && (code >> 7 != 0) == (sign != 0);
          })) {
        return false;
      }
    }
  }
  return true;
}

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

// Returns the code of one value by definition, and counts it.
std::uint8_t expected_code(const Definition& format, float value, float scale,
                           QuantizeCounts& counts) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return 0x7F | sign;
  if (std::isinf(value)) return static_cast<std::uint8_t>(format.infinity() | sign);
  const float scaled = std::fabs(value * scale);
  // Clips a value that is finite before scaling, even if the product is not finite.
  const auto bits = std::min(std::bit_cast<std::uint32_t>(scaled), kInfinityBits - 1);
  std::vector<std::uint8_t> code(1);
  ExpectedCodes(format, 0).fill(bits, 1, code);
  const std::vector<double> all = finite_values(format);
  // Rounds as if exponents continued: clips from the middle to the next value on.
  const double beyond = all.back() + (all.back() - all[all.size() - 2]) / 2;
  const bool is_even = all.size() % 2 != 0;
  counts.saturated += scaled > beyond || (scaled == beyond && !is_even);
  counts.underflow += value != 0 && code[0] == 0;
  counts.amax = std::max(counts.amax, std::fabs(value));
  return code[0] | sign;
}

}  // namespace

TEST_SUITE("sdk.precision.float_codec") {
  TEST_CASE("the largest finite value is that of the definition") {
    for (const Definition& format : definitions()) {
      CHECK(largest_finite(format.format) == finite_values(format).back());
    }
  }

  TEST_CASE("floats of every size: to nearest, ties to even, clipped at the largest finite value") {
    for (const Definition& format : definitions()) {
      CAPTURE(format.name);
      CHECK(wrong_borders(format) == 0);
      CHECK(first_difference(format, kStride) == kNoDifference);
    }
  }

  TEST_CASE("all NaN stay NaN, infinities stay or become NaN in E4M3") {
    for (const Definition& format : definitions()) {
      CAPTURE(format.name);
      CHECK(keeps_nan_and_infinity(format));
    }
  }

  TEST_CASE("a batch of any length gets the codes and counts of its values") {
    const std::vector<float> values = random_floats(3000, 7);
    const std::vector<std::uint8_t> all = codes_of(FloatFormat::e5m2, values);
    for (const std::size_t count : {0u, 1u, 255u, 256u, 257u, 3000u}) {
      std::vector<std::uint8_t> codes(count);
      QuantizeCounts sum;
      for (std::size_t i = 0; i < count; ++i) {
        std::uint8_t code = 0;
        const std::span one(&values[i], 1);
        merge_into(sum, quantize(FloatFormat::e5m2, one, 1, std::span(&code, 1)));
      }
      CHECK(quantize(FloatFormat::e5m2, std::span(values).first(count), 1, codes) == sum);
      CHECK(std::equal(codes.begin(), codes.end(), all.begin()));
    }
  }

  TEST_CASE("quantising scales, casts with saturation and counts in one pass") {
    std::vector<float> values = random_floats(7000, 3);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    values.insert(values.begin(), {nan, infinity, -infinity, 0.0f, -0.0f, 448.0f, 464.0f, 464.5f,
                                   61440.0f, 61439.0f, 1e-30f});
    for (const Definition& format : definitions()) {
      CAPTURE(format.name);
      for (const float scale : {1.0f, 0x1p20f, 0x1p-30f, 0x1p126f}) {
        QuantizeCounts expected{.sampled = values.size()};
        std::vector<std::uint8_t> wanted;
        for (const float value : values) {
          wanted.push_back(expected_code(format, value, scale, expected));
        }
        std::vector<std::uint8_t> codes(values.size());
        CHECK(quantize(format.format, values, scale, codes) == expected);
        CHECK(codes == wanted);
      }
    }
  }

  TEST_CASE("quantising bf16 is quantising the floats that it stands for") {
    std::vector<std::uint16_t> halves;
    std::vector<float> values;
    for (const float value : random_floats(5000, 11)) {
      halves.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
      values.push_back(std::bit_cast<float>(std::uint32_t{halves.back()} << 16));
    }
    std::vector<std::uint8_t> from_bf16(values.size());
    std::vector<std::uint8_t> from_floats(values.size());
    const QuantizeCounts counts = quantize(FloatFormat::e4m3, halves, 4.0f, from_bf16);
    CHECK(counts == quantize(FloatFormat::e4m3, values, 4.0f, from_floats));
    CHECK(from_bf16 == from_floats);
  }
}
