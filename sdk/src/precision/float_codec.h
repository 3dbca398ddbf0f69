// The number formats with fewer bits than float, in one place: E4M3 (OCP's "fn": no infinity, one
// NaN per sign, largest 448), E5M2, bf16 and fp16. Scalar and batch forms are the same arithmetic,
// bit for bit, whatever the processor. Not-a-number and infinity are never lost: a NaN stays one
// (the quiet one of its sign), an infinity stays one or becomes NaN in E4M3, also where casts
// saturate, because whoever looks for the block that overflowed must see it. Pure functions,
// standard library only. Requires: the default rounding mode of the processor.
#pragma once

#include <cstdint>
#include <span>

namespace cox::detail {

enum class FloatFormat : std::uint8_t { e4m3, e5m2, bf16, fp16 };
enum class Rounding : std::uint8_t { nearest_even, toward_zero };

// What a finite value beyond the largest finite one becomes.
enum class OverflowRule : std::uint8_t {
  ieee,     // rounded to nearest: infinity, in E4M3 NaN (torch's casts); toward zero: the largest
  saturate  // the largest finite value of its sign
};

// A format as numbers. A code is sign, exponent, mantissa; magnitudes are codes without sign.
struct FloatLayout {
  int bits;
  int mantissa_bits;
  int bias;
  std::uint32_t largest;  // magnitude of the largest finite value; infinity, if any, comes next
  std::uint32_t nan;      // magnitude of the quiet NaN

  std::uint32_t sign() const { return 1u << (bits - 1); }
  bool has_infinity() const { return nan != largest + 1; }
};

FloatLayout layout_of(FloatFormat format);
float largest_finite(FloatFormat format);

std::uint16_t encode(FloatFormat format, float value, Rounding rounding = Rounding::nearest_even,
                     OverflowRule overflow = OverflowRule::ieee);
// Exact. Bits of `code` above the format's are not looked at.
float decode(FloatFormat format, std::uint16_t code);

// Batches. Require: spans of equal length; 8-bit codes for E4M3 and E5M2, 16-bit codes for the
// rest.
void encode(FloatFormat format, std::span<const float> values, std::span<std::uint8_t> codes,
            Rounding rounding, OverflowRule overflow);
void encode(FloatFormat format, std::span<const float> values, std::span<std::uint16_t> codes,
            Rounding rounding, OverflowRule overflow);
void decode(FloatFormat format, std::span<const std::uint8_t> codes, std::span<float> values);
void decode(FloatFormat format, std::span<const std::uint16_t> codes, std::span<float> values);

// What quantising saw.
struct QuantizeCounts {
  std::uint64_t sampled = 0;    // values
  std::uint64_t saturated = 0;  // of these: finite, and clipped to the largest
  std::uint64_t underflow = 0;  // of these: not zero, and made zero
  float amax = 0;               // largest finite magnitude, before scaling

  friend bool operator==(const QuantizeCounts&, const QuantizeCounts&) = default;
};
void merge_into(QuantizeCounts& into, const QuantizeCounts& from);

// codes = value * scale in the format, to nearest even, saturating; counts in the same pass.
// Requires: an 8-bit format, scale > 0. The second form takes bf16 codes as values.
QuantizeCounts quantize(FloatFormat format, std::span<const float> values, float scale,
                        std::span<std::uint8_t> codes);
QuantizeCounts quantize(FloatFormat format, std::span<const std::uint16_t> bf16_values, float scale,
                        std::span<std::uint8_t> codes);

// Largest finite magnitude; 0 of nothing.
float finite_amax(std::span<const float> values);
float finite_amax(std::span<const std::uint16_t> bf16_values);

}  // namespace cox::detail
