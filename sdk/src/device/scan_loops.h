// The loops behind TensorScan. They run over contiguous values in memory at the widest vectors that
// the processor has. Values of 32 bits are floats; values of 16 bits are bf16 or fp16, as
// WordFormat tells. Sums of squares are exact squares of floats in double, added in 32 lanes side
// by side, so their order depends on the size alone: no processor and no compiler changes a bit.
// Pure; each runs on the thread that calls it.
#pragma once

#include <cstdint>

namespace cox::detail {

// The bounds at which a format's bits, its sign left out, begin to mean other things.
struct WordFormat {
  std::uint32_t infinity;  // from here on: infinite or NaN
  std::uint32_t tiny;      // below, and not 0: smaller than fp16's least normal number, 2^-14
};
inline constexpr WordFormat kFp32Words{0x7F800000, 0x38800000};
inline constexpr WordFormat kBf16Words{0x7F80, 0x3880};
inline constexpr WordFormat kFp16Words{0x7C00, 0x0400};

struct WordCounts {
  std::uint32_t largest = 0;  // finite bits, without sign
  std::int64_t nonfinite = 0;
  std::int64_t tiny = 0;
  std::int64_t zeros = 0;
};

// Returns the largest bits without sign, finite or not; they are below `infinity` exactly if all
// values are finite. Near the speed of memory.
std::uint32_t largest_word(const float* values, std::int64_t count);
std::uint32_t largest_word(const std::uint16_t* values, std::int64_t count);

// Returns all counts. REQUIRES: count <= 2^20.
WordCounts count_words(const float* values, std::int64_t count, WordFormat format);
WordCounts count_words(const std::uint16_t* values, std::int64_t count, WordFormat format);

// Return the sum of squares.
double squares_of_fp32(const float* values, std::int64_t count);
double squares_of_bf16(const std::uint16_t* values, std::int64_t count);
double squares_of_fp16(const std::uint16_t* values, std::int64_t count);

// Writes values times `factor` to `to`; returns the squares of what it wrote.
double copy_fp32(const float* from, float* to, std::int64_t count, float factor);
double copy_bf16(const std::uint16_t* from, float* to, std::int64_t count, float factor);
double copy_fp16(const std::uint16_t* from, float* to, std::int64_t count, float factor);

}  // namespace cox::detail
