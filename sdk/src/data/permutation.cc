#include "sdk/src/data/permutation.h"

#include <bit>
#include <cstddef>

namespace cox::detail {
namespace {

// The finaliser of SplitMix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio, odd

std::uint64_t mask(int bits) {
  return (std::uint64_t{1} << bits) - 1;
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream)
    : size_(size) {
  const int bits = size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 0;
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  std::uint64_t state = mix(mix(seed + kGolden) + stream * kGolden);
  for (std::uint64_t& key : keys_) key = mix(state += kGolden);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  std::uint64_t low = value & mask(low_bits_);
  std::uint64_t high = value >> low_bits_;
  for (std::size_t i = 0; i < keys_.size(); i += 2) {
    high ^= mix(low + keys_[i]) & mask(high_bits_);
    low ^= mix(high + keys_[i + 1]) & mask(low_bits_);
  }
  return (high << low_bits_) | low;
}

std::uint64_t Permutation::operator()(std::uint64_t position) const {
  std::uint64_t value = encrypt(position);
  while (value >= size_) value = encrypt(value);
  return value;
}

}  // namespace cox::detail
