// Converts floats to FP8 and back on the CPU: E4M3 (OCP's "fn": no infinity, one NaN per sign,
// largest 448) and E5M2. Quantising is the arithmetic of fp8_elements.h, which kernels on devices
// share. LibTorch's casts do not saturate, do not count and take 2 to 10 times as long from the
// cache. NaN and infinity are never lost: a NaN stays one, an infinity stays one or becomes NaN in
// E4M3, because the search for the block that overflowed must see it. Pure functions, standard
// library only; the same bits whatever the processor. REQUIRES: the processor rounds as by default.
#pragma once

#include <cstdint>
#include <span>

namespace cox::detail {

enum class FloatFormat : std::uint8_t { e4m3, e5m2 };

float largest_finite(FloatFormat format);

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
// same pass. The second form takes bf16 codes as values. REQUIRES: spans of equal length,
// scale > 0.
QuantizeCounts quantize(FloatFormat format, std::span<const float> values, float scale,
                        std::span<std::uint8_t> codes);
QuantizeCounts quantize(FloatFormat format, std::span<const std::uint16_t> bf16_values, float scale,
                        std::span<std::uint8_t> codes);

// Writes the value of each code, exactly. REQUIRES: spans of equal length.
void decode(FloatFormat format, std::span<const std::uint8_t> codes, std::span<float> values);

// Returns 2^e, the largest that leaves `margin` bits free: amax * 2^e * 2^margin <=
// largest_finite(format); 1 where amax is 0. Its inverse is a float too. REQUIRES: amax is finite
// and not negative.
float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin);

}  // namespace cox::detail
