#include "sdk/src/precision/scan_loops.h"

#include <algorithm>
#include <cstring>

// AVX-512 compares small integers in an extension of its own only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define COX_WORD_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define COX_WORD_VECTORS
#endif
#define COX_INLINE __attribute__((always_inline)) inline

namespace cox::detail {
namespace {

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

}  // namespace cox::detail
