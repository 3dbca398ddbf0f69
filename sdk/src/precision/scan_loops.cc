#include "sdk/src/precision/scan_loops.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define COX_WIDEST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
// AVX-512 compares small integers in an extension of its own only.
#define COX_WORD_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define COX_WIDEST_VECTORS
#define COX_WORD_VECTORS
#endif
#define COX_INLINE __attribute__((always_inline)) inline

namespace cox::detail {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(16)));
using Words = std::uint32_t __attribute__((vector_size(32)));

constexpr std::int64_t kStep = 32;  // values in a turn of the loops over numbers

struct FromFp32 {
  using Value = float;
  static COX_INLINE void load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof(to)); }
};

struct FromBf16 {
  using Value = std::uint16_t;
  static COX_INLINE void load(const std::uint16_t* from, Floats& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof(halves));
    const Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&to, &words, sizeof(to));
  }
};

struct FromFp16 {
  using Value = std::uint16_t;
  static COX_INLINE void load(const std::uint16_t* from, Floats& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof(halves));
    const Words words = __builtin_convertvector(halves, Words);
    const Words sign = (words & 0x8000u) << 16;
    const Words rest = words & 0x7FFFu;
    // The integer part of a subnormal is its value in units of 2^-24, exact in a float.
    const Floats small = __builtin_convertvector(rest, Floats) * 0x1p-24f;
    Words small_bits;
    std::memcpy(&small_bits, &small, sizeof(small_bits));
    const Words normal = (rest << 13) + (112u << 23);
    const Words special = (rest << 13) | 0x7F800000u;
    const Words bits = (rest < 0x0400u ? small_bits : (rest < 0x7C00u ? normal : special)) | sign;
    std::memcpy(&to, &bits, sizeof(to));
  }
};

struct Keep {
  COX_INLINE void put(Floats&, std::int64_t) const {}
};

struct CopyTo {
  float* to;
  float factor;
  COX_INLINE void put(Floats& values, std::int64_t at) const {
    values *= factor;
    std::memcpy(to + at, &values, sizeof(values));
  }
};

COX_INLINE void add_square(Doubles& sum, const Floats& values) {
  const Doubles wide = __builtin_convertvector(values, Doubles);
  sum += wide * wide;
}

struct Lanes {
  Doubles a{}, b{}, c{}, d{};

  template <class From, class Out>
  COX_INLINE void turn(const typename From::Value* values, const Out& out, std::int64_t at) {
    Floats p, q, r, s;
    From::load(values, p);
    From::load(values + 8, q);
    From::load(values + 16, r);
    From::load(values + 24, s);
    out.put(p, at);
    out.put(q, at + 8);
    out.put(r, at + 16);
    out.put(s, at + 24);
    add_square(a, p);
    add_square(b, q);
    add_square(c, r);
    add_square(d, s);
  }

  COX_INLINE double total() const {
    double lanes[kStep];
    std::memcpy(lanes, &a, sizeof(a));
    std::memcpy(lanes + 8, &b, sizeof(b));
    std::memcpy(lanes + 16, &c, sizeof(c));
    std::memcpy(lanes + 24, &d, sizeof(d));
    double total = 0;
    for (const double lane : lanes) total += lane;
    return total;
  }
};

// What is left over is filled up with zeros, which change no lane.
template <class From>
COX_INLINE double squares(const typename From::Value* values, std::int64_t count) {
  Lanes lanes;
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) lanes.turn<From>(values + i, Keep{}, i);
  if (i < count) {
    typename From::Value rest[kStep] = {};
    std::memcpy(rest, values + i, static_cast<std::size_t>(count - i) * sizeof(rest[0]));
    lanes.turn<From>(rest, Keep{}, i);
  }
  return lanes.total();
}

template <class From>
COX_INLINE double copy(const typename From::Value* from, float* to, std::int64_t count,
                       float factor) {
  Lanes lanes;
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) lanes.turn<From>(from + i, CopyTo{to, factor}, i);
  if (i < count) {
    typename From::Value rest[kStep] = {};
    float wide[kStep];
    const auto left = static_cast<std::size_t>(count - i);
    std::memcpy(rest, from + i, left * sizeof(rest[0]));
    lanes.turn<From>(rest, CopyTo{wide, factor}, 0);
    std::memcpy(to + i, wide, left * sizeof(float));
  }
  return lanes.total();
}

// Word: the unsigned integer of a value's size; Vector: 32 bytes of them.
template <class Word, class Vector>
struct WordLoops {
  static constexpr std::int64_t kWords = sizeof(Vector) / sizeof(Word);
  static constexpr Word kMagnitude = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);

  static COX_INLINE void raise(Vector& most, const void* from) {
    Vector words;
    std::memcpy(&words, from, sizeof(words));
    words &= kMagnitude;
    most = words > most ? words : most;
  }

  static COX_INLINE Word largest_of(const Vector& words) {
    Word largest = 0;
    for (std::int64_t i = 0; i < kWords; ++i) largest = std::max<Word>(largest, words[i]);
    return largest;
  }

  static COX_INLINE std::uint32_t largest(const Word* values, std::int64_t count) {
    Vector a{}, b{}, c{}, d{};
    std::int64_t i = 0;
    for (; i + 4 * kWords <= count; i += 4 * kWords) {
      raise(a, values + i);
      raise(b, values + i + kWords);
      raise(c, values + i + 2 * kWords);
      raise(d, values + i + 3 * kWords);
    }
    for (; i + kWords <= count; i += kWords) raise(a, values + i);
    if (i < count) {
      Word rest[kWords] = {};
      std::memcpy(rest, values + i, static_cast<std::size_t>(count - i) * sizeof(Word));
      raise(b, rest);
    }
    return std::max({largest_of(a), largest_of(b), largest_of(c), largest_of(d)});
  }

  // Comparisons give all ones, which is -1: counting is subtracting.
  struct Counts {
    Vector largest{}, nonfinite{}, tiny{}, zeros{};

    COX_INLINE void turn(const void* from, Word infinity, Word least) {
      Vector words;
      std::memcpy(&words, from, sizeof(words));
      words &= kMagnitude;
      const Vector bad = static_cast<Vector>(words >= infinity);
      const Vector zero = static_cast<Vector>(words == 0);
      const Vector below = static_cast<Vector>(words < least);
      nonfinite -= bad;
      zeros -= zero;
      tiny -= below & ~zero;
      const Vector finite = words & ~bad;
      largest = finite > largest ? finite : largest;
    }
  };

  static COX_INLINE std::int64_t sum_of(const Vector& words) {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < kWords; ++i) sum += words[i];
    return sum;
  }

  static COX_INLINE WordCounts count(const Word* values, std::int64_t count, WordFormat format) {
    const auto infinity = static_cast<Word>(format.infinity);
    const auto least = static_cast<Word>(format.tiny);
    Counts counts;
    std::int64_t i = 0;
    for (; i + kWords <= count; i += kWords) counts.turn(values + i, infinity, least);
    std::int64_t added = 0;
    if (i < count) {
      Word rest[kWords] = {};
      std::memcpy(rest, values + i, static_cast<std::size_t>(count - i) * sizeof(Word));
      counts.turn(rest, infinity, least);
      added = i + kWords - count;
    }
    return {largest_of(counts.largest), sum_of(counts.nonfinite), sum_of(counts.tiny),
            sum_of(counts.zeros) - added};
  }
};

using Loops32 = WordLoops<std::uint32_t, std::uint32_t __attribute__((vector_size(32)))>;
using Loops16 = WordLoops<std::uint16_t, std::uint16_t __attribute__((vector_size(32)))>;

// The loops read through memcpy alone, so the cast is only a matter of types.
COX_INLINE const std::uint32_t* words_of(const float* values) {
  return reinterpret_cast<const std::uint32_t*>(values);
}

}  // namespace

COX_WORD_VECTORS std::uint32_t largest_word(const float* values, std::int64_t count) {
  return Loops32::largest(words_of(values), count);
}
COX_WORD_VECTORS std::uint32_t largest_word(const std::uint16_t* values, std::int64_t count) {
  return Loops16::largest(values, count);
}
COX_WORD_VECTORS WordCounts count_words(const float* values, std::int64_t count,
                                        WordFormat format) {
  return Loops32::count(words_of(values), count, format);
}
COX_WORD_VECTORS WordCounts count_words(const std::uint16_t* values, std::int64_t count,
                                        WordFormat format) {
  return Loops16::count(values, count, format);
}
COX_WIDEST_VECTORS double squares_of_fp32(const float* values, std::int64_t count) {
  return squares<FromFp32>(values, count);
}
COX_WIDEST_VECTORS double squares_of_bf16(const std::uint16_t* values, std::int64_t count) {
  return squares<FromBf16>(values, count);
}
COX_WIDEST_VECTORS double squares_of_fp16(const std::uint16_t* values, std::int64_t count) {
  return squares<FromFp16>(values, count);
}
COX_WIDEST_VECTORS double copy_fp32(const float* from, float* to, std::int64_t count,
                                    float factor) {
  return copy<FromFp32>(from, to, count, factor);
}
COX_WIDEST_VECTORS double copy_bf16(const std::uint16_t* from, float* to, std::int64_t count,
                                    float factor) {
  return copy<FromBf16>(from, to, count, factor);
}
COX_WIDEST_VECTORS double copy_fp16(const std::uint16_t* from, float* to, std::int64_t count,
                                    float factor) {
  return copy<FromFp16>(from, to, count, factor);
}

}  // namespace cox::detail
