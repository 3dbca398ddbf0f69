// Quantises one value, or four: the cast to E4M3 or E5M2, the scale, the counts. Includes nothing,
// because two compilers read the file. A device compiles it with fp8_kernels.cu and casts with the
// processor's instruction. The host compiles it into the loops of float_codec.h and casts with
// arithmetic that compilers vectorise. Pure.
#pragma once

#if defined(__CUDACC_RTC__)
#define COX_FP8_INLINE __device__ __forceinline__
#else
#define COX_FP8_INLINE __attribute__((always_inline)) inline
#endif

namespace cox::fp8 {

using Byte = unsigned char;
using Bits = unsigned int;
using Count = unsigned long long;

constexpr Bits kMagnitude = 0x7FFFFFFFu;  // in a float's bits
constexpr Bits kInfinite = 0x7F800000u;

COX_FP8_INLINE constexpr Bits bits_of(float value) {
  return __builtin_bit_cast(Bits, value);
}
COX_FP8_INLINE constexpr float float_of(Bits bits) {
  return __builtin_bit_cast(float, bits);
}
COX_FP8_INLINE constexpr float power_of_two(int exponent) {
  return float_of(static_cast<Bits>(exponent + 127) << 23);
}
COX_FP8_INLINE Bits larger(Bits a, Bits b) {
  return a > b ? a : b;
}
COX_FP8_INLINE Bits smaller(Bits a, Bits b) {
  return a < b ? a : b;
}

// A format: the constants of its codes.
struct E4m3 {
  static constexpr int kMantissa = 3;
  static constexpr int kBias = 7;
  static constexpr Bits kLargest = 0x7E;
  static constexpr Bits kInfinity = 0x7F;  // none in the format
  static constexpr Bits kNan = 0x7F;
  static constexpr float kLargestValue = 448.0f;
  // The bits of the largest scaled magnitude that rounds to at most the largest value. A tie goes
  // to the even code.
  static constexpr Bits kMostKept = 0x43E80000;  // 464
};
struct E5m2 {
  static constexpr int kMantissa = 2;
  static constexpr int kBias = 15;
  static constexpr Bits kLargest = 0x7B;
  static constexpr Bits kInfinity = 0x7C;
  static constexpr Bits kNan = 0x7F;
  static constexpr float kLargestValue = 57344.0f;
  static constexpr Bits kMostKept = 0x476FFFFF;  // just below 61440
};

// Returns the exponent e of fp8_multiplier()'s 2^e. `amax`: the bits of a finite magnitude.
template <class Format>
COX_FP8_INLINE int free_exponent(Bits amax, Bits margin) {
  if (amax == 0) return 0;
  const double quotient = static_cast<double>(Format::kLargestValue) / float_of(amax);
  const int exponent = static_cast<int>(__builtin_bit_cast(Count, quotient) >> 52 & 0x7FF) - 1023;
  const int free = exponent - static_cast<int>(margin);
  return free < -126 ? -126 : free > 126 ? 126 : free;
}

COX_FP8_INLINE float bf16_value(Bits raw) {
  return float_of(raw << 16);
}

// Keeps a NaN's sign.
COX_FP8_INLINE float fp16_value(Bits raw) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(raw)));
  return float_of((bits_of(value) & kMagnitude) | (raw & 0x8000) << 16);
#else
  const Bits magnitude = raw & 0x7FFF;
  const Bits sign = (raw & 0x8000) << 16;
  if (magnitude >= 0x7C00) return float_of(sign | kInfinite | (magnitude & 0x3FF) << 13);
  if (magnitude >= 0x400) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  const float small = static_cast<float>(static_cast<int>(magnitude)) * power_of_two(-24);
  return float_of(sign | bits_of(small));
#endif
}

// Returns the code, without sign, nearest to a magnitude. The magnitude is finite, or infinite by
// overflow of its scale. Computes both cases and selects, so that loops vectorise.
template <class Format>
COX_FP8_INLINE Bits nearest_code(Bits scaled) {
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr Bits kFirstNormal = static_cast<Bits>(128 - Format::kBias) << 23;
  const Bits odd = scaled >> kShift & 1;
  const Bits rounded = (scaled + (1u << (kShift - 1)) - 1 + odd) >> kShift;
  const Bits normal = smaller(
      rounded - (static_cast<Bits>(127 - Format::kBias) << Format::kMantissa), Format::kLargest);
  // The raise's last bit equals the smallest subnormal value, so the addition rounds.
  constexpr float kRaise = power_of_two(24 - Format::kBias - Format::kMantissa);
  const Bits subnormal = bits_of(float_of(scaled) + kRaise) - bits_of(kRaise);
  return scaled < kFirstNormal ? subnormal : normal;
}

// Returns two codes, with the code of `first` in the low byte. Treats infinity as a finite value
// whose scaling overflowed. The code of a NaN is undefined.
template <class Format>
COX_FP8_INLINE Bits two_codes(float first, float second) {
#if defined(__CUDA_ARCH__)
  unsigned short codes;
  if constexpr (Format::kMantissa == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  }
  return codes;
#else
  const auto one = [](float value) {
    const Bits bits = bits_of(value);
    return nearest_code<Format>(bits & kMagnitude) | (bits >> 24 & 0x80);
  };
  return one(first) | one(second) << 8;
#endif
}

// Counts of one quantisation, as in QuantizeCounts.
struct Counts {
  Bits saturated = 0;
  Bits underflow = 0;
  Bits amax = 0;  // as bits
};

// Bits of one value's magnitudes on the way to its code.
struct Step {
  Bits finite;  // the value; 0 unless it is finite
  Bits scaled;
  Bits code;
};

template <class Format>
COX_FP8_INLINE void count(const Step& step, Counts& counts) {
  const Bits is_there = smaller(step.finite, 1);
  counts.saturated += step.scaled > Format::kMostKept ? is_there : 0;
  counts.underflow += step.code == 0 ? is_there : 0;
  counts.amax = larger(counts.amax, step.finite);
}

// Returns the code of any value, and its magnitudes in `step`.
template <class Format>
COX_FP8_INLINE Bits one_code(float value, float multiplier, Step& step) {
  const Bits magnitude = bits_of(value) & kMagnitude;
  const float scaled = value * multiplier;
  const Bits code = two_codes<Format>(scaled, 0) & 0xFF;
  const Bits other = magnitude > kInfinite ? Format::kNan : Format::kInfinity;
  step = {magnitude < kInfinite ? magnitude : 0, bits_of(scaled) & kMagnitude, code & 0x7F};
  return magnitude < kInfinite ? code : other | (bits_of(value) >> 24 & 0x80);
}

// Returns the codes of any four values.
template <class Format>
COX_FP8_INLINE Bits any_four_codes(const float (&values)[4], float multiplier, Counts& counts) {
  Bits codes = 0;
  for (int i = 0; i < 4; ++i) {
    Step step;
    codes |= one_code<Format>(values[i], multiplier, step) << 8 * i;
    count<Format>(step, counts);
  }
  return codes;
}

// The same, fast if all values are finite, none is clipped and none becomes zero.
template <class Format>
COX_FP8_INLINE Bits four_codes(const float (&values)[4], float multiplier, Counts& counts) {
  const Bits most =
      larger(larger(bits_of(values[0]) & kMagnitude, bits_of(values[1]) & kMagnitude),
             larger(bits_of(values[2]) & kMagnitude, bits_of(values[3]) & kMagnitude));
  const bool is_plain =
      most < kInfinite && bits_of(float_of(most) * multiplier) <= Format::kMostKept;
  if (!is_plain) return any_four_codes<Format>(values, multiplier, counts);
  const Bits codes = two_codes<Format>(values[0] * multiplier, values[1] * multiplier) |
                     two_codes<Format>(values[2] * multiplier, values[3] * multiplier) << 16;
  constexpr Bits kSeven = 0x7F7F7F7F;
  counts.amax = larger(counts.amax, most);
  if (((((codes & kSeven) + kSeven) & ~kSeven) ^ ~kSeven) == 0) return codes;  // no byte is zero
  for (int i = 0; i < 4; ++i) {
    const bool is_zero = (codes >> 8 * i & 0x7F) == 0;
    counts.underflow += is_zero && (bits_of(values[i]) & kMagnitude) != 0 ? 1 : 0;
  }
  return codes;
}

// Sizes for starting the kernels of fp8_kernels.cu.
constexpr int kThreads = 256;
constexpr int kSide = 64;   // a tile's side
constexpr int kAtOnce = 4;  // concurrent reads of a thread

// Arguments of a kernel of codes, in one struct for the host to fill.
struct Codes {
  const void* values;
  Count rows;           // 1 for `codes` alone
  Count columns;        // all values for `codes` alone
  const Bits* partial;  // results of `amax`
  Bits partials;        // 0: the scale is given
  Bits margin;
  float* scale;
  Byte* codes;
  Byte* turned;    // [columns, rows]; null for `codes`
  double* counts;  // saturated, underflow, amax
};

}  // namespace cox::fp8
