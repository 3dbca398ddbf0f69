#include "sdk/src/precision/float_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "sdk/src/device/float_vectors.h"
#include "sdk/src/precision/fp8_elements.h"

namespace cox::detail {
namespace {

using fp8::Bits;
using fp8::Counts;
using fp8::E4m3;
using fp8::E5m2;

constexpr std::uint32_t kQuietNan = 0x7FC00000;
constexpr std::size_t kChunk = 256;  // a known length lets the compiler vectorise

COX_INLINE float as_float(float value) {
  return value;
}
COX_INLINE float as_float(std::uint16_t bf16) {
  return fp8::bf16_value(bf16);
}

template <class Format, class Source>
COX_INLINE void quantize_chunk(const Source* __restrict values, float scale,
                               std::uint8_t* __restrict codes, QuantizeCounts& total) {
  std::array<std::uint32_t, kChunk> finite, scaled, rounded;
  for (std::size_t k = 0; k < kChunk; ++k) {
    fp8::Step step;
    codes[k] = static_cast<std::uint8_t>(fp8::one_code<Format>(as_float(values[k]), scale, step));
    finite[k] = step.finite;
    scaled[k] = step.scaled;
    rounded[k] = step.code;
  }
  Counts counts;
  for (std::size_t k = 0; k < kChunk; ++k) {
    fp8::count<Format>({finite[k], scaled[k], rounded[k]}, counts);
  }
  total.saturated += counts.saturated;
  total.underflow += counts.underflow;
  total.amax = std::max(total.amax, std::bit_cast<float>(counts.amax));
}

// Zeros fill up the last chunk and add nothing to the counts.
template <class Format, class Source>
COX_WIDEST_VECTORS QuantizeCounts quantize_all(const Source* values, float scale,
                                               std::uint8_t* codes, std::size_t count) {
  QuantizeCounts total;
  std::size_t i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    quantize_chunk<Format>(values + i, scale, codes + i, total);
  }
  if (i < count) {
    std::array<Source, kChunk> rest{};
    std::array<std::uint8_t, kChunk> rest_codes;
    std::copy(values + i, values + count, rest.begin());
    quantize_chunk<Format>(rest.data(), scale, rest_codes.data(), total);
    std::copy_n(rest_codes.begin(), count - i, codes + i);
  }
  total.sampled = count;
  return total;
}

// Constants of the decoding loop. Hidden from the compiler, which would otherwise compare codes
// bytewise and widen the masks, at a loss of speed.
struct Decoder {
  template <class Format>
  explicit Decoder(Format)
      : shift(23 - Format::kMantissa),
        rebias(static_cast<Bits>(127 - Format::kBias) << 23),
        first_normal(1u << Format::kMantissa),
        largest(Format::kLargest),
        infinite(Format::kInfinity == Format::kNan ? 0x80 : Format::kInfinity),
        unit(fp8::power_of_two(1 - Format::kBias - Format::kMantissa)) {}

  int shift;
  Bits rebias;
  Bits first_normal;
  Bits largest;
  Bits infinite;  // for a format without infinities 0x80, which no magnitude is
  float unit;     // the smallest subnormal value
};

COX_INLINE float value_of(const Decoder& from, Bits code) {
  const Bits magnitude = code & 0x7F;
  const Bits normal = (magnitude << from.shift) + from.rebias;
  const Bits subnormal = fp8::bits_of(static_cast<float>(static_cast<int>(magnitude)) * from.unit);
  const Bits finite = magnitude < from.first_normal ? subnormal : normal;
  const Bits other = magnitude == from.infinite ? fp8::kInfinite : kQuietNan;
  return fp8::float_of((magnitude <= from.largest ? finite : other) | (code & 0x80) << 24);
}

COX_WIDEST_VECTORS void decode_all(Decoder from, const std::uint8_t* __restrict codes,
                                   float* __restrict values, std::size_t count) {
  std::size_t i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    for (std::size_t k = 0; k < kChunk; ++k) values[i + k] = value_of(from, codes[i + k]);
  }
  for (; i < count; ++i) values[i] = value_of(from, codes[i]);
}

// Calls body(E4m3()) or body(E5m2()).
template <class Body>
auto with_format(FloatFormat format, const Body& body) {
  return format == FloatFormat::e4m3 ? body(E4m3()) : body(E5m2());
}

}  // namespace

float largest_finite(FloatFormat format) {
  return with_format(format, []<class Format>(Format) { return Format::kLargestValue; });
}

void merge_into(QuantizeCounts& into, const QuantizeCounts& from) {
  into.sampled += from.sampled;
  into.saturated += from.saturated;
  into.underflow += from.underflow;
  into.amax = std::max(into.amax, from.amax);
}

QuantizeCounts quantize(FloatFormat format, std::span<const float> values, float scale,
                        std::span<std::uint8_t> codes) {
  return with_format(format, [&]<class Format>(Format) {
    return quantize_all<Format>(values.data(), scale, codes.data(), values.size());
  });
}

QuantizeCounts quantize(FloatFormat format, std::span<const std::uint16_t> bf16_values, float scale,
                        std::span<std::uint8_t> codes) {
  return with_format(format, [&]<class Format>(Format) {
    return quantize_all<Format>(bf16_values.data(), scale, codes.data(), bf16_values.size());
  });
}

void decode(FloatFormat format, std::span<const std::uint8_t> codes, std::span<float> values) {
  const Decoder from = with_format(format, [](auto its) { return Decoder(its); });
  decode_all(from, codes.data(), values.data(), codes.size());
}

float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin) {
  return with_format(format, [&]<class Format>(Format) {
    return fp8::power_of_two(fp8::free_exponent<Format>(fp8::bits_of(amax), margin));
  });
}

}  // namespace cox::detail
