// The codecs against the formats' definitions, at every float where a code begins or ends and at
// one of 61 between them. `scripts/bench N1` looks at every float there is.
#include "sdk/src/precision/float_codec.h"

#include <algorithm>
#include <random>

#include "tests/sdk/precision/codec_comparison.h"

#include <doctest/doctest.h>

namespace {

using namespace codec_test;
using namespace cox::detail;

constexpr std::uint32_t kBatch = 1u << 16;
constexpr OverflowRule kRules[] = {OverflowRule::ieee, OverflowRule::saturate};
constexpr Rounding kRoundings[] = {Rounding::nearest_even, Rounding::toward_zero};

// Odd, so that all patterns of the lower bits occur.
constexpr std::uint32_t kStride = 61;

void check_floats(const Definition& format, Rounding rounding, OverflowRule overflow) {
  CAPTURE(format.name);
  CHECK(wrong_borders(format, rounding, overflow) == 0);
  CHECK(first_difference(format, rounding, overflow, kStride) == kNoDifference);
}

// Every NaN, and both infinities, through the batch form.
template <class Code>
bool keeps_nan_and_infinity(const Definition& format, OverflowRule overflow) {
  std::vector<float> values(kBatch);
  std::vector<Code> codes(kBatch);
  for (const std::uint32_t sign : {0u, 1u}) {
    for (std::uint32_t first = kInfinityBits; first < 1u << 31; first += kBatch) {
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        values[i] = std::bit_cast<float>((first + i) | (sign << 31));
      }
      encode(format.format, values, codes, Rounding::nearest_even, overflow);
      const bool begins = first == kInfinityBits;
      if (begins && codes[0] != (format.infinity() | sign << (format.bits - 1))) return false;
      if (!std::all_of(codes.begin() + begins, codes.end(), [&](Code code) {
            return format.is_nan(code) && (code >> (format.bits - 1) != 0) == (sign != 0);
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

}  // namespace

TEST_SUITE("sdk.precision.float_codec") {
  TEST_CASE("every code of every format stands for the value that its definition gives") {
    for (const Definition& format : definitions()) {
      CAPTURE(format.name);
      const std::vector<double> values = finite_values(format);
      CHECK(largest_finite(format.format) == values.back());
      const std::uint32_t negative = 1u << (format.bits - 1);
      int wrong = 0;
      for (std::uint32_t code = 0; code < negative; ++code) {
        const float plus = decode(format.format, static_cast<std::uint16_t>(code));
        const float minus = decode(format.format, static_cast<std::uint16_t>(code | negative));
        if (!std::signbit(minus) || std::signbit(plus)) ++wrong;
        if (code < values.size()) {
          if (plus != values[code] || minus != -values[code]) ++wrong;
        } else if (format.is_nan(code)) {
          if (!std::isnan(plus) || !std::isnan(minus)) ++wrong;
        } else if (!std::isinf(plus) || !std::isinf(minus)) {
          ++wrong;
        }
      }
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("a value that a format has keeps its code, under every rounding and overflow rule") {
    for (const Definition& format : definitions()) {
      CAPTURE(format.name);
      int wrong = 0;
      for (std::uint32_t code = 0; code < 1u << format.bits; ++code) {
        const float value = decode(format.format, static_cast<std::uint16_t>(code));
        for (const Rounding rounding : kRoundings) {
          for (const OverflowRule rule : kRules) {
            const std::uint16_t again = encode(format.format, value, rounding, rule);
            wrong += format.is_nan(code) ? !format.is_nan(again) : again != code;
          }
        }
      }
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("floats of every size: to nearest, ties to even, overflow as torch's casts") {
    for (const Definition& format : definitions()) {
      check_floats(format, Rounding::nearest_even, OverflowRule::ieee);
    }
  }
  TEST_CASE("floats of every size: toward zero, which never leaves the finite values") {
    for (const Definition& format : definitions()) {
      check_floats(format, Rounding::toward_zero, OverflowRule::ieee);
    }
  }
  TEST_CASE("floats of every size: saturating casts to 8 bits clip at the largest finite value") {
    check_floats(definitions()[0], Rounding::nearest_even, OverflowRule::saturate);
    check_floats(definitions()[1], Rounding::nearest_even, OverflowRule::saturate);
  }

  TEST_CASE("all NaN stay NaN, infinities stay or become NaN in E4M3, saturating or not") {
    for (const Definition& format : definitions()) {
      CAPTURE(format.name);
      for (const OverflowRule rule : kRules) {
        CHECK((format.bits == 8 ? keeps_nan_and_infinity<std::uint8_t>(format, rule)
                                : keeps_nan_and_infinity<std::uint16_t>(format, rule)));
      }
    }
  }

  TEST_CASE("saturating casts to 16 bits clip at the largest finite value") {
    for (const FloatFormat format : {FloatFormat::bf16, FloatFormat::fp16}) {
      const float largest = largest_finite(format);
      for (const Rounding rounding : kRoundings) {
        const auto cast = [&](float value) {
          return decode(format, encode(format, value, rounding, OverflowRule::saturate));
        };
        CHECK(cast(std::numeric_limits<float>::max()) == largest);
        CHECK(cast(-std::numeric_limits<float>::max()) == -largest);
        CHECK(cast(largest) == largest);
      }
    }
  }

  TEST_CASE("the scalar form and batches of any length agree bit for bit") {
    const std::vector<float> values = random_floats(3000, 7);
    for (const Definition& format : definitions()) {
      for (const Rounding rounding : kRoundings) {
        for (const std::size_t count : {0u, 1u, 255u, 256u, 257u, 3000u}) {
          const std::span<const float> some = std::span(values).first(count);
          std::vector<std::uint8_t> narrow(count);
          std::vector<std::uint16_t> wide(count);
          std::vector<float> back(count);
          if (format.bits == 8) {
            encode(format.format, some, narrow, rounding, OverflowRule::saturate);
            decode(format.format, narrow, back);
            std::copy(narrow.begin(), narrow.end(), wide.begin());
          } else {
            encode(format.format, some, wide, rounding, OverflowRule::saturate);
            decode(format.format, wide, back);
          }
          int wrong = 0;
          for (std::size_t i = 0; i < count; ++i) {
            wrong += wide[i] != encode(format.format, some[i], rounding, OverflowRule::saturate);
            const float value = decode(format.format, wide[i]);
            wrong += std::bit_cast<std::uint32_t>(back[i]) != std::bit_cast<std::uint32_t>(value);
          }
          CHECK(wrong == 0);
        }
      }
    }
  }

  TEST_CASE("quantising scales, casts with saturation and counts in one pass") {
    std::vector<float> values = random_floats(70000, 3);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    values.insert(values.begin(), {nan, infinity, -infinity, 0.0f, -0.0f, 448.0f, 464.5f, 1e-30f});
    for (const FloatFormat format : {FloatFormat::e4m3, FloatFormat::e5m2}) {
      for (const float scale : {1.0f, 0x1p20f, 0x1p-30f, 0x1p126f}) {
        QuantizeCounts expected;
        std::vector<std::uint8_t> wanted;
        for (const float value : values) {
          const float scaled = value * scale;
          // What is finite before the scale is clipped even if the product is not.
          const float cut = std::isfinite(value)
                                ? std::clamp(scaled, -std::numeric_limits<float>::max(),
                                             std::numeric_limits<float>::max())
                                : value;
          const auto code = static_cast<std::uint8_t>(
              encode(format, cut, Rounding::nearest_even, OverflowRule::saturate));
          wanted.push_back(code);
          ++expected.sampled;
          if (!std::isfinite(value)) continue;
          expected.amax = std::max(expected.amax, std::fabs(value));
          const auto free = encode(format, cut, Rounding::nearest_even, OverflowRule::ieee);
          expected.saturated += free != code;
          expected.underflow += value != 0 && (code & 0x7F) == 0;
        }
        std::vector<std::uint8_t> codes(values.size());
        CHECK(quantize(format, values, scale, codes) == expected);
        CHECK(codes == wanted);
        CHECK(finite_amax(values) == expected.amax);
      }
    }
  }

  TEST_CASE("quantising bf16 is quantising the floats that it stands for") {
    const std::vector<float> random = random_floats(5000, 11);
    std::vector<std::uint16_t> halves(random.size());
    encode(FloatFormat::bf16, random, halves, Rounding::nearest_even, OverflowRule::ieee);
    std::vector<float> values(random.size());
    decode(FloatFormat::bf16, halves, values);
    std::vector<std::uint8_t> from_bf16(values.size());
    std::vector<std::uint8_t> from_floats(values.size());
    const QuantizeCounts counts = quantize(FloatFormat::e4m3, halves, 4.0f, from_bf16);
    CHECK(counts == quantize(FloatFormat::e4m3, values, 4.0f, from_floats));
    CHECK(from_bf16 == from_floats);
    CHECK(finite_amax(halves) == finite_amax(values));
  }
}
