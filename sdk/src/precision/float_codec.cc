#include "sdk/src/precision/float_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "sdk/src/device/float_vectors.h"

#define COX_INLINE_LAMBDA __attribute__((always_inline))

namespace cox::detail {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFF;  // of a float's bits
constexpr std::uint32_t kInfinity = 0x7F800000;
constexpr std::uint32_t kQuietNan = 0x7FC00000;
constexpr std::size_t kChunk = 256;  // a known length, so that the compiler vectorises

constexpr std::array<FloatLayout, 4> kLayouts = {{{8, 3, 7, 0x7E, 0x7F},
                                                  {8, 2, 15, 0x7B, 0x7F},
                                                  {16, 7, 127, 0x7F7F, 0x7FC0},
                                                  {16, 10, 15, 0x7BFF, 0x7E00}}};

constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// Constants of a loop that encodes.
struct Encoder {
  explicit Encoder(const FloatLayout& layout, Rounding rounding, OverflowRule overflow)
      : nearest(rounding == Rounding::nearest_even ? 1 : 0),
        shift(23 - layout.mantissa_bits),
        half(nearest * ((1u << (shift - 1)) - 1)),
        rebias(static_cast<std::uint32_t>(127 - layout.bias) << layout.mantissa_bits),
        nan(layout.nan),
        infinite(layout.largest + 1),
        limit(nearest == 1 && overflow == OverflowRule::ieee ? infinite : layout.largest),
        sign_shift(32 - layout.bits),
        sign(layout.sign()) {
    if (layout.bias == 127) return;  // float's own range: nothing is subnormal that float has not
    first_normal = static_cast<std::uint32_t>(128 - layout.bias) << 23;
    raise = power_of_two(24 - layout.bias - layout.mantissa_bits);
  }

  std::uint32_t nearest;
  int shift;
  std::uint32_t half;
  std::uint32_t rebias;
  std::uint32_t nan;
  std::uint32_t infinite;
  std::uint32_t limit;
  int sign_shift;
  std::uint32_t sign;
  std::uint32_t first_normal = 0;  // bits of the smallest normal value
  float raise = 0;                 // its last bit weighs as much as the smallest subnormal value
};

// The magnitude of a finite float, not yet limited. Adding `raise` lets the processor round.
COX_INLINE std::uint32_t encode_finite(const Encoder& to, std::uint32_t magnitude) {
  const std::uint32_t odd = magnitude >> to.shift & to.nearest;
  const std::uint32_t normal = ((magnitude + to.half + odd) >> to.shift) - to.rebias;
  const float value = std::bit_cast<float>(magnitude);
  const float raised = value + to.raise;
  const std::uint32_t is_above = raised - to.raise > value ? 1 - to.nearest : 0;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(raised) - std::bit_cast<std::uint32_t>(to.raise) - is_above;
  return magnitude < to.first_normal ? subnormal : normal;
}

COX_INLINE std::uint32_t encode_one(const Encoder& to, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kMagnitude;
  const std::uint32_t finite = std::min(encode_finite(to, magnitude), to.limit);
  const std::uint32_t other = magnitude > kInfinity ? to.nan : to.infinite;
  return (magnitude < kInfinity ? finite : other) | (bits >> to.sign_shift & to.sign);
}

struct Decoder {
  explicit Decoder(const FloatLayout& layout)
      : shift(23 - layout.mantissa_bits),
        rebias(static_cast<std::uint32_t>(127 - layout.bias) << 23),
        largest(layout.largest),
        infinite(layout.has_infinity() ? layout.largest + 1 : layout.sign()),
        sign_shift(32 - layout.bits),
        sign(layout.sign()) {
    if (layout.bias == 127) return;
    first_normal = 1u << layout.mantissa_bits;
    unit = power_of_two(1 - layout.bias - layout.mantissa_bits);
  }

  int shift;
  std::uint32_t rebias;
  std::uint32_t largest;
  std::uint32_t infinite;
  int sign_shift;
  std::uint32_t sign;
  std::uint32_t first_normal = 0;
  float unit = 0;
};

COX_INLINE float decode_one(const Decoder& from, std::uint32_t code) {
  const std::uint32_t magnitude = code & (from.sign - 1);
  const std::uint32_t normal = (magnitude << from.shift) + from.rebias;
  const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * from.unit;
  const std::uint32_t finite =
      magnitude < from.first_normal ? std::bit_cast<std::uint32_t>(small) : normal;
  const std::uint32_t other = magnitude == from.infinite ? kInfinity : kQuietNan;
  const std::uint32_t sign = (code & from.sign) << from.sign_shift;
  return std::bit_cast<float>((magnitude <= from.largest ? finite : other) | sign);
}

// Calls body(i) in chunks of a known length, then for the rest.
template <class Body>
COX_INLINE void in_chunks(std::size_t count, const Body& body) {
  std::size_t i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    for (std::size_t k = 0; k < kChunk; ++k) body(i + k);
  }
  for (; i < count; ++i) body(i);
}

template <class Code>
COX_WIDEST_VECTORS void encode_all(Encoder to, const float* __restrict values,
                                   Code* __restrict codes, std::size_t count) {
  in_chunks(count, [=](std::size_t i) COX_INLINE_LAMBDA {
    codes[i] = static_cast<Code>(encode_one(to, values[i]));
  });
}

template <class Code>
COX_WIDEST_VECTORS void decode_all(Decoder from, const Code* __restrict codes,
                                   float* __restrict values, std::size_t count) {
  in_chunks(count,
            [=](std::size_t i) COX_INLINE_LAMBDA { values[i] = decode_one(from, codes[i]); });
}

COX_INLINE float as_float(float value) {
  return value;
}
COX_INLINE float as_float(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

struct ChunkCounts {
  std::uint32_t saturated = 0;
  std::uint32_t underflow = 0;
  std::uint32_t amax = 0;  // as bits, which order as the values do
};

// Loops over one chunk, each simple enough to be vectorised.
template <class Source>
COX_INLINE ChunkCounts quantize_chunk(const Encoder& encoder, const Source* __restrict values,
                                      float scale, std::uint8_t* __restrict codes) {
  const Encoder to = encoder;
  std::array<std::uint32_t, kChunk> magnitudes;
  std::array<std::uint32_t, kChunk> rounded;
  for (std::size_t k = 0; k < kChunk; ++k) {
    const float value = as_float(values[k]);
    const auto scaled = std::bit_cast<std::uint32_t>(value * scale);
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & kMagnitude;
    const std::uint32_t finite = encode_finite(to, scaled & kMagnitude);
    const std::uint32_t other = magnitude > kInfinity ? to.nan : to.infinite;
    const std::uint32_t limited = magnitude < kInfinity ? std::min(finite, to.limit) : other;
    codes[k] = static_cast<std::uint8_t>(limited | (scaled >> to.sign_shift & to.sign));
    magnitudes[k] = magnitude < kInfinity ? magnitude : 0;
    rounded[k] = finite;
  }
  ChunkCounts counts;
  for (std::size_t k = 0; k < kChunk; ++k) {
    const std::uint32_t is_there = std::min(magnitudes[k], 1u);
    counts.saturated += rounded[k] > to.limit ? is_there : 0;
    counts.underflow += rounded[k] == 0 ? is_there : 0;
    counts.amax = std::max(counts.amax, magnitudes[k]);
  }
  return counts;
}

// The last chunk is filled up with zeros, which count as nothing.
template <class Source>
COX_WIDEST_VECTORS QuantizeCounts quantize_all(Encoder to, const Source* values, float scale,
                                               std::uint8_t* codes, std::size_t count) {
  QuantizeCounts total;
  std::uint32_t amax = 0;
  const auto add = [&](const ChunkCounts& counts) COX_INLINE_LAMBDA {
    total.saturated += counts.saturated;
    total.underflow += counts.underflow;
    amax = std::max(amax, counts.amax);
  };
  std::size_t i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    add(quantize_chunk(to, values + i, scale, codes + i));
  }
  if (i < count) {
    std::array<Source, kChunk> rest{};
    std::array<std::uint8_t, kChunk> rest_codes;
    std::copy(values + i, values + count, rest.begin());
    add(quantize_chunk(to, rest.data(), scale, rest_codes.data()));
    std::copy_n(rest_codes.begin(), count - i, codes + i);
  }
  total.sampled = count;
  total.amax = std::bit_cast<float>(amax);
  return total;
}

template <class Source>
COX_WIDEST_VECTORS float amax_of(const Source* values, std::size_t count) {
  std::uint32_t amax = 0;
  const auto add = [&](std::size_t i) COX_INLINE_LAMBDA {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(as_float(values[i])) & kMagnitude;
    amax = std::max(amax, magnitude < kInfinity ? magnitude : 0u);
  };
  in_chunks(count, add);
  return std::bit_cast<float>(amax);
}

Encoder saturating(FloatFormat format) {
  return Encoder(layout_of(format), Rounding::nearest_even, OverflowRule::saturate);
}

}  // namespace

FloatLayout layout_of(FloatFormat format) {
  return kLayouts[static_cast<std::size_t>(format)];
}

float largest_finite(FloatFormat format) {
  const FloatLayout layout = layout_of(format);
  return decode_one(Decoder(layout), layout.largest);
}

std::uint16_t encode(FloatFormat format, float value, Rounding rounding, OverflowRule overflow) {
  return static_cast<std::uint16_t>(
      encode_one(Encoder(layout_of(format), rounding, overflow), value));
}

float decode(FloatFormat format, std::uint16_t code) {
  return decode_one(Decoder(layout_of(format)), code);
}

void encode(FloatFormat format, std::span<const float> values, std::span<std::uint8_t> codes,
            Rounding rounding, OverflowRule overflow) {
  encode_all(Encoder(layout_of(format), rounding, overflow), values.data(), codes.data(),
             values.size());
}

void encode(FloatFormat format, std::span<const float> values, std::span<std::uint16_t> codes,
            Rounding rounding, OverflowRule overflow) {
  encode_all(Encoder(layout_of(format), rounding, overflow), values.data(), codes.data(),
             values.size());
}

void decode(FloatFormat format, std::span<const std::uint8_t> codes, std::span<float> values) {
  decode_all(Decoder(layout_of(format)), codes.data(), values.data(), codes.size());
}

void decode(FloatFormat format, std::span<const std::uint16_t> codes, std::span<float> values) {
  decode_all(Decoder(layout_of(format)), codes.data(), values.data(), codes.size());
}

void merge_into(QuantizeCounts& into, const QuantizeCounts& from) {
  into.sampled += from.sampled;
  into.saturated += from.saturated;
  into.underflow += from.underflow;
  into.amax = std::max(into.amax, from.amax);
}

QuantizeCounts quantize(FloatFormat format, std::span<const float> values, float scale,
                        std::span<std::uint8_t> codes) {
  return quantize_all(saturating(format), values.data(), scale, codes.data(), values.size());
}

QuantizeCounts quantize(FloatFormat format, std::span<const std::uint16_t> bf16_values, float scale,
                        std::span<std::uint8_t> codes) {
  return quantize_all(saturating(format), bf16_values.data(), scale, codes.data(),
                      bf16_values.size());
}

float finite_amax(std::span<const float> values) {
  return amax_of(values.data(), values.size());
}
float finite_amax(std::span<const std::uint16_t> bf16_values) {
  return amax_of(bf16_values.data(), bf16_values.size());
}

float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin) {
  if (amax == 0) return 1;
  int exponent = 0;
  std::frexp(static_cast<double>(largest_finite(format)) / amax, &exponent);
  return std::ldexp(1.0f, std::clamp(exponent - 1 - static_cast<int>(margin), -126, 126));
}

}  // namespace cox::detail
