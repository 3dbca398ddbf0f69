// The loops of TensorScan, over contiguous values at the processor's widest vectors. Values of 32
// bits are floats; values of 16 bits are bf16 or fp16, by the type From of float_vectors.h. Sums of
// squares are exact squares of floats in double, added in 32 lanes side by side. So their order
// depends on the size alone, and no processor and no compiler changes a bit. Pure; runs on the
// calling thread.
#pragma once

#include <cstdint>

#include "sdk/src/device/float_vectors.h"

namespace cox::detail {

struct WordCounts {
  std::uint32_t largest = 0;  // finite bits, without sign
  std::int64_t nonfinite = 0;
  std::int64_t tiny = 0;
  std::int64_t zeros = 0;
};

// Returns the largest bits without sign, finite or not. The result is below `infinity` exactly if
// all values are finite. Near the speed of memory.
std::uint32_t largest_word(const float* values, std::int64_t count);
std::uint32_t largest_word(const std::uint16_t* values, std::int64_t count);

// Returns all counts. Above 2^20 values only `largest` is valid.
WordCounts count_words(const float* values, std::int64_t count, WordFormat format);
WordCounts count_words(const std::uint16_t* values, std::int64_t count, WordFormat format);

// Returns the largest finite magnitude, 0 if there is none.
template <class From>
float finite_amax(const typename From::Value* values, std::int64_t count) {
  const std::uint32_t largest = largest_word(values, count);
  if (largest < From::kWords.infinity) return decoded<From>(largest);
  return decoded<From>(count_words(values, count, From::kWords).largest);
}

// Returns the sum of squares.
template <class From>
double squares_of(const typename From::Value* values, std::int64_t count);

// Writes values times `factor` to `to`; returns the sum of squares of the written values.
template <class From>
double copy_scaled(const typename From::Value* from, float* to, std::int64_t count, float factor);

}  // namespace cox::detail
