// Converts between float and the formats with fewer bits: E4M3 (OCP's "fn": no infinity, one NaN
// per sign, largest 448), E5M2, bf16 and fp16. FP8 quantising uses it. Scalar and batch forms are
// the same arithmetic, bit for bit, whatever the processor. NaN and infinity are never lost: a NaN
// stays one (the quiet one of its sign), an infinity stays one or becomes NaN in E4M3, also where
// casts saturate, because the search for the block that overflowed must see it. Pure functions,
// standard library only. REQUIRES: the processor rounds as by default.
#pragma once

#include <cstdint>
#include <span>

namespace cox::detail {

enum class FloatFormat : std::uint8_t { e4m3, e5m2, bf16, fp16 };
enum class Rounding : std::uint8_t { nearest_even, toward_zero };

// Tells what a finite value beyond the largest finite one becomes.
enum class OverflowRule : std::uint8_t {
  ieee,     // rounded to nearest: infinity, in E4M3 NaN (torch's casts); toward zero: the largest
  saturate  // the largest finite value of its sign
};

// The constants of a format. A code is sign, exponent, mantissa; a magnitude is a code without
// sign.
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
// Exact. Ignores the bits of `code` above the format's.
float decode(FloatFormat format, std::uint16_t code);

// Batches. REQUIRES: spans of equal length; 8-bit codes for E4M3 and E5M2, 16-bit codes for the
// rest.
void encode(FloatFormat format, std::span<const float> values, std::span<std::uint8_t> codes,
            Rounding rounding, OverflowRule overflow);
void encode(FloatFormat format, std::span<const float> values, std::span<std::uint16_t> codes,
            Rounding rounding, OverflowRule overflow);
void decode(FloatFormat format, std::span<const std::uint8_t> codes, std::span<float> values);
void decode(FloatFormat format, std::span<const std::uint16_t> codes, std::span<float> values);

// Counts of what quantising saw.
struct QuantizeCounts {
  std::uint64_t sampled = 0;    // values
  std::uint64_t saturated = 0;  // of these: finite, and clipped to the largest
  std::uint64_t underflow = 0;  // of these: not zero, and made zero
  float amax = 0;               // largest finite magnitude, before scaling

  friend bool operator==(const QuantizeCounts&, const QuantizeCounts&) = default;
};
void merge_into(QuantizeCounts& into, const QuantizeCounts& from);

// Writes value * scale in the format to `codes`, to nearest even, saturating, and counts in the
// same pass. The second form takes bf16 codes as values. REQUIRES: an 8-bit format, scale > 0.
QuantizeCounts quantize(FloatFormat format, std::span<const float> values, float scale,
                        std::span<std::uint8_t> codes);
QuantizeCounts quantize(FloatFormat format, std::span<const std::uint16_t> bf16_values, float scale,
                        std::span<std::uint8_t> codes);

// Returns 2^e, the largest that leaves `margin` bits free: amax * 2^e * 2^margin <=
// largest_finite(format); 1 where amax is 0. Its inverse is a float too.
float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin);

// Returns the largest finite magnitude, 0 if there is none.
float finite_amax(std::span<const float> values);
float finite_amax(std::span<const std::uint16_t> bf16_values);

}  // namespace cox::detail
