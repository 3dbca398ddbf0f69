#include "sdk/src/device/scan_loops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#if COX_HAS_X86
#include <immintrin.h>
#endif

// Only an extension of AVX-512 compares small integers.
#if COX_HAS_X86 && !defined(__clang__)
#define COX_WORD_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define COX_WORD_VECTORS
#endif

namespace cox::detail {
namespace {

// Word: the unsigned integer of a value's size; Vector: 32 bytes of Words.
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

  // A true comparison is all ones, which is -1, so counting subtracts.
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

// The loops read only through memcpy, so the cast changes nothing but the type.
COX_INLINE const std::uint32_t* words_of(const float* values) {
  return reinterpret_cast<const std::uint32_t*>(values);
}

constexpr std::int64_t kScanLanes =
    32;  // partial sums side by side, and values in a turn of the loops
using Lanes = std::array<double, kScanLanes>;

// All loops below read `turns` times kScanLanes values and add each square to the lane of its
// place. With Copy::scaled they write values times `factor` to `to`; else they ignore `to`.
enum class Copy { none, scaled };

template <class From, Copy kCopy>
COX_INLINE void add_squares(Doubles& sum, const typename From::Value* from, float* to,
                            std::int64_t place, float factor) {
  Floats values;
  From::load(from, values);
  if constexpr (kCopy == Copy::scaled) {
    values *= factor;
    std::memcpy(to + place, &values, sizeof(values));
  }
  const Doubles wide = __builtin_convertvector(values, Doubles);
  sum += wide * wide;
}

template <class From, Copy kCopy>
COX_WIDEST_VECTORS void run(const typename From::Value* from, float* to, float factor,
                            std::int64_t turns, Lanes& lanes) {
  Doubles a{}, b{}, c{}, d{};
  for (std::int64_t i = 0; i < turns * kScanLanes; i += kScanLanes) {
    add_squares<From, kCopy>(a, from + i, to, i, factor);
    add_squares<From, kCopy>(b, from + i + 8, to, i + 8, factor);
    add_squares<From, kCopy>(c, from + i + 16, to, i + 16, factor);
    add_squares<From, kCopy>(d, from + i + 24, to, i + 24, factor);
  }
  std::memcpy(lanes.data(), &a, sizeof(a));
  std::memcpy(lanes.data() + 8, &b, sizeof(b));
  std::memcpy(lanes.data() + 16, &c, sizeof(c));
  std::memcpy(lanes.data() + 24, &d, sizeof(d));
}

#if COX_HAS_X86
// One instruction of the processor, where the compiler converts 8 floats in two halves.
__attribute__((target("avx512f"), always_inline)) inline __m512d next_512(__m512d sum,
                                                                          const float* from,
                                                                          float* to, float factor) {
  const __m256 values = _mm256_mul_ps(_mm256_loadu_ps(from), _mm256_set1_ps(factor));
  _mm256_storeu_ps(to, values);
  // Uses a full mask, because the plain form triggers a warning in the compiler's own header.
  const __m512d wide = _mm512_maskz_cvtps_pd(0xFF, values);
  return _mm512_add_pd(sum, _mm512_mul_pd(wide, wide));
}

__attribute__((target("avx512f"))) void copies_512(const float* from, float* to, float factor,
                                                   std::int64_t turns, Lanes& lanes) {
  __m512d a = _mm512_setzero_pd();
  __m512d b = a, c = a, d = a;
  for (std::int64_t i = 0; i < turns * kScanLanes; i += kScanLanes) {
    a = next_512(a, from + i, to + i, factor);
    b = next_512(b, from + i + 8, to + i + 8, factor);
    c = next_512(c, from + i + 16, to + i + 16, factor);
    d = next_512(d, from + i + 24, to + i + 24, factor);
  }
  _mm512_storeu_pd(lanes.data(), a);
  _mm512_storeu_pd(lanes.data() + 8, b);
  _mm512_storeu_pd(lanes.data() + 16, c);
  _mm512_storeu_pd(lanes.data() + 24, d);
}

// Converts four floats straight from memory, at half the cost of eight in a register. A float's
// square is exact in double, so a fused addition rounds as often. Prefetches the page after the
// next, because processors prefetch within a page only.
__attribute__((target("avx2,fma"))) void squares_256(const float* from, std::int64_t turns,
                                                     Lanes& lanes) {
  constexpr int kSums = kScanLanes / 4;
  __m256d sums[kSums];
  for (__m256d& sum : sums) sum = _mm256_setzero_pd();
  constexpr std::int64_t kPage = 4096 / sizeof(float);
  for (std::int64_t i = 0; i < turns * kScanLanes; i += kScanLanes) {
    if (i % kPage == 0) _mm_prefetch(from + i + 2 * kPage, _MM_HINT_T0);
    for (int s = 0; s < kSums; ++s) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(from + i + 4 * s));
      sums[s] = _mm256_fmadd_pd(wide, wide, sums[s]);
    }
  }
  for (int s = 0; s < kSums; ++s) _mm256_storeu_pd(lanes.data() + 4 * s, sums[s]);
}
#endif

// Runs full turns by `loop`; the rest is one more turn, filled up with zeros, which change no lane.
// A null `to` copies nothing.
template <class Value, class Loop>
double add_lanes(const Value* from, float* to, std::int64_t count, const Loop& loop) {
  Lanes lanes;
  loop(from, to, count / kScanLanes, lanes);
  const std::int64_t left = count % kScanLanes;
  if (left > 0) {
    Value rest[kScanLanes] = {};
    float copy[kScanLanes];
    Lanes last;
    std::copy_n(from + (count - left), left, rest);
    loop(rest, copy, 1, last);
    if (to != nullptr) std::copy_n(copy, left, to + (count - left));
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] += last[i];
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
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

template <class From>
double squares_of(const typename From::Value* values, std::int64_t count) {
  const auto loop = [](const auto* from, float*, std::int64_t turns, Lanes& lanes) {
#if COX_HAS_X86
    if constexpr (std::is_same_v<From, FromFp32>) {
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return squares_256(from, turns, lanes);
      }
    }
#endif
    run<From, Copy::none>(from, nullptr, 1, turns, lanes);
  };
  return add_lanes(values, nullptr, count, loop);
}

template <class From>
double copy_scaled(const typename From::Value* from, float* to, std::int64_t count, float factor) {
  const auto loop = [factor](const auto* f, float* t, std::int64_t turns, Lanes& lanes) {
#if COX_HAS_X86
    if constexpr (std::is_same_v<From, FromFp32>) {
      if (__builtin_cpu_supports("avx512f")) return copies_512(f, t, factor, turns, lanes);
    }
#endif
    run<From, Copy::scaled>(f, t, factor, turns, lanes);
  };
  return add_lanes(from, to, count, loop);
}

template double squares_of<FromFp32>(const float*, std::int64_t);
template double squares_of<FromBf16>(const std::uint16_t*, std::int64_t);
template double squares_of<FromFp16>(const std::uint16_t*, std::int64_t);
template double copy_scaled<FromFp32>(const float*, float*, std::int64_t, float);
template double copy_scaled<FromBf16>(const std::uint16_t*, float*, std::int64_t, float);
template double copy_scaled<FromFp16>(const std::uint16_t*, float*, std::int64_t, float);

}  // namespace cox::detail
