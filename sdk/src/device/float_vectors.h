// The types of values in memory, and their conversion to floats, 8 at a time in a vector. Loops
// over gradients use them (scan_loops.cc here, the exact sums in parallel). A function marked
// COX_WIDEST_VECTORS is compiled for several processors and selected at load time, with all its
// callees inlined. Included by sources only. Pure; any thread.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define COX_HAS_X86 1
#else
#define COX_HAS_X86 0
#endif
#if COX_HAS_X86 && !defined(__clang__)
#define COX_WIDEST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define COX_WIDEST_VECTORS
#endif
#define COX_INLINE __attribute__((always_inline)) inline

namespace cox::detail {

using Floats = float __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(16)));
using Words = std::uint32_t __attribute__((vector_size(32)));

// Bounds in a format's bits, without sign.
struct WordFormat {
  std::uint32_t infinity;  // from here on: infinite or NaN
  std::uint32_t tiny;      // below, and not 0: smaller than fp16's least normal number, 2^-14
};

struct FromFp32 {
  using Value = float;
  static constexpr WordFormat kWords{0x7F800000, 0x38800000};
  static COX_INLINE void load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof(to)); }
};

struct FromBf16 {
  using Value = std::uint16_t;
  static constexpr WordFormat kWords{0x7F80, 0x3880};
  static COX_INLINE void load(const std::uint16_t* from, Floats& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof(halves));
    const Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&to, &words, sizeof(to));
  }
};

struct FromFp16 {
  using Value = std::uint16_t;
  static constexpr WordFormat kWords{0x7C00, 0x0400};
  static COX_INLINE void load(const std::uint16_t* from, Floats& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof(halves));
    const Words words = __builtin_convertvector(halves, Words);
    const Words sign = (words & 0x8000u) << 16;
    const Words rest = words & 0x7FFFu;
    // A subnormal's integer part is its value in units of 2^-24, exact in a float.
    const Floats small = __builtin_convertvector(rest, Floats) * 0x1p-24f;
    Words small_bits;
    std::memcpy(&small_bits, &small, sizeof(small_bits));
    const Words normal = (rest << 13) + (112u << 23);
    const Words special = (rest << 13) | 0x7F800000u;
    const Words bits = (rest < 0x0400u ? small_bits : (rest < 0x7C00u ? normal : special)) | sign;
    std::memcpy(&to, &bits, sizeof(to));
  }
};

// Returns the value of these bits.
template <class From>
float decoded(std::uint32_t word) {
  typename From::Value values[8] = {};
  std::memcpy(values, &word, sizeof(values[0]));  // the low bytes come first
  Floats floats;
  From::load(values, floats);
  return floats[0];
}

}  // namespace cox::detail
