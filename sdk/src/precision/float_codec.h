// Converts floats to FP8 and back on the CPU, in E4M3 (OCP's "fn": no infinity, one NaN per sign,
// largest value 448) and E5M2. Uses the arithmetic of fp8_elements.h, shared with the device's
// kernels. LibTorch's casts neither saturate nor count, and take 2 to 10 times as long on data in
// the cache. A NaN stays NaN. An infinity stays infinite, or becomes NaN in E4M3, so that the
// search for an overflow finds the block. Pure functions, standard library only; the same bits on
// every processor. REQUIRES: the processor's default rounding.
#pragma once

#include <cstdint>
#include <span>

namespace cox::detail {

enum class FloatFormat : std::uint8_t { e4m3, e5m2 };

float largest_finite(FloatFormat format);

// QuantizeCounts counts the values of one quantisation.
struct QuantizeCounts {
  std::uint64_t sampled = 0;    // values quantised
  std::uint64_t saturated = 0;  // finite values clipped to the largest
  std::uint64_t underflow = 0;  // non-zero values made zero
  float amax = 0;               // largest finite magnitude, before scaling

  friend bool operator==(const QuantizeCounts&, const QuantizeCounts&) = default;
};
void merge_into(QuantizeCounts& into, const QuantizeCounts& from);

// Writes value * scale in the format to `codes`, rounded to nearest even and saturated. Returns the
// counts of the values. The second form reads bf16 codes. REQUIRES: spans of equal length, scale >
// 0.
QuantizeCounts quantize(FloatFormat format, std::span<const float> values, float scale,
                        std::span<std::uint8_t> codes);
QuantizeCounts quantize(FloatFormat format, std::span<const std::uint16_t> bf16_values, float scale,
                        std::span<std::uint8_t> codes);

// Writes the exact value of each code. REQUIRES: spans of equal length.
void decode(FloatFormat format, std::span<const std::uint8_t> codes, std::span<float> values);

// Returns the largest power of two, 2^e, that leaves `margin` bits free: amax * 2^e * 2^margin <=
// largest_finite(format). Returns 1 for an amax of 0. Both the result and its reciprocal are
// floats. REQUIRES: amax is finite and not negative.
float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin);

}  // namespace cox::detail
