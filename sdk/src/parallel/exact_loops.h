// The loops behind ExactSum: over contiguous values in memory, at the widest vectors the processor
// has. Every operation is rounded by itself and every element stands alone, so no processor,
// compiler or thread changes a bit. Values of 16 bits are bf16 or fp16. Pure, single-threaded.
#pragma once

#include <cstdint>

namespace cox::detail {

// How a value is rounded: to multiples of the quantum of `magic`, which is 1.5 x 2^52 of them.
// Adding it leaves no bit of a smaller value below the quantum, and taking it away is exact.
struct ExactRounding {
  double weight = 1;
  double magic = 0;
};

// accumulator[i] += round(values[i] x weight). Requires: all values finite and within the bin.
void add_fp32(const float* values, double* accumulator, std::int64_t count, ExactRounding rounding);
void add_bf16(const std::uint16_t* values, double* accumulator, std::int64_t count,
              ExactRounding rounding);
void add_fp16(const std::uint16_t* values, double* accumulator, std::int64_t count,
              ExactRounding rounding);
// For the few that need a look at each: those are left out whose magnitude, times the weight, is
// not below `end`; NaN is not.
void add_below(double end, const double* values, double* accumulator, std::int64_t count,
               ExactRounding rounding);

// to[i] = accumulator[i] / divisor, to the nearest fp64 and then fp32.
void divide_to_fp32(const double* accumulator, float* to, std::int64_t count, double divisor);

}  // namespace cox::detail
