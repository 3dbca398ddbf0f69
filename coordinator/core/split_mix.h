// SplitMix64 (Steele, Lea and Flood, 2014): numbers that look random and are the same on every rank
// and machine. Not for secrets. Pure.
#pragma once

#include <cstdint>

namespace cox {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio, odd

// Returns x with every bit spread over all bits; one-to-one.
constexpr std::uint64_t spread_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The generator: a seed gives one sequence.
class SplitMix {
 public:
  explicit constexpr SplitMix(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() { return spread_bits(state_ += kGolden); }

 private:
  std::uint64_t state_;
};

// Returns the first number that the generator draws from `seed`.
constexpr std::uint64_t split_mix(std::uint64_t seed) {
  return SplitMix(seed).next();
}

}  // namespace cox
