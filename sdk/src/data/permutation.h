// A pseudo-random permutation of [0, n) in constant memory: a Feistel network over the next power
// of two, walked on until the result falls below n (fewer than two tries on average). Not
// cryptographic. Value type, std only.
#pragma once

#include <array>
#include <cstdint>

namespace cox::detail {

class Permutation {
 public:
  // The permutation number (seed, stream). Requires: 1 <= size <= 2^62.
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream);

  // Requires: position < size. Returns a value below size; one-to-one.
  std::uint64_t operator()(std::uint64_t position) const;

 private:
  static constexpr int kRounds = 6;  // each mixes either half once

  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  int low_bits_ = 0;
  int high_bits_ = 0;
  std::array<std::uint64_t, 2 * kRounds> keys_{};
};

}  // namespace cox::detail
