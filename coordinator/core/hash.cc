#include "coordinator/core/hash.h"

#include <array>
#include <cstring>

namespace cox {
namespace {

constexpr std::uint32_t next_bit(std::uint32_t c) {
  return (c & 1u) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
}

// tables[n][i]: the effect of nibble i on the remainder with n more nibbles behind. One kilobyte in
// all: a signal is sealed once a step, when training has emptied the caches. Tables of bytes (8
// KiB, nearly all touched) would then cost four times as much in cache misses.
constexpr std::size_t kNibbles = 16;  // processed at once
using Tables = std::array<std::array<std::uint32_t, 16>, kNibbles>;

constexpr Tables make_tables() {
  Tables t{};
  for (std::uint32_t i = 0; i < 16; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 4; ++bit) c = next_bit(c);
    t[0][i] = c;
  }
  for (std::size_t n = 1; n < t.size(); ++n) {
    for (std::size_t i = 0; i < 16; ++i) t[n][i] = (t[n - 1][i] >> 4) ^ t[0][t[n - 1][i] & 0xF];
  }
  return t;
}

alignas(64) constexpr Tables kTables = make_tables();

std::uint64_t little_endian_word(const std::byte* p) {
  std::uint64_t word = 0;
  for (unsigned i = 0; i < 8; ++i) word |= static_cast<std::uint64_t>(p[i]) << (8 * i);
  return word;
}

std::uint32_t next_nibble(std::uint32_t crc) {
  return (crc >> 4) ^ kTables[0][crc & 0xF];
}

// Returns the remainder after `bytes`, from the remainder before.
std::uint32_t pass(std::uint32_t crc, std::span<const std::byte> bytes) {
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, p += 8) {
    const std::uint64_t word = little_endian_word(p) ^ crc;
    crc = 0;
    for (unsigned n = 0; n < kNibbles; ++n) {
      crc ^= kTables[kNibbles - 1 - n][(word >> (4 * n)) & 0xF];
    }
  }
  for (; left > 0; --left, ++p) {
    crc = next_nibble(next_nibble(crc ^ static_cast<std::uint32_t>(*p)));
  }
  return crc;
}

#if defined(__x86_64__)

// Returns x^n modulo the polynomial, in the bit order for a product of two such numbers.
constexpr long long power_of_x(int n) {
  std::uint32_t c = 0x80000000u;
  for (; n > 0; --n) c = next_bit(c);
  return static_cast<long long>(c) << 1;
}

constexpr long long kFoldLow = power_of_x(128 + 32);
constexpr long long kFoldHigh = power_of_x(128 - 32);
constexpr std::size_t kFoldFrom = 64;  // bytes from which on folding is faster

using TwoWords = long long __attribute__((vector_size(16)));

TwoWords load(const std::byte* p) {
  TwoWords words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

// Carry-less products: 16 bytes are multiplied by x^128 modulo the polynomial and added to the next
// 16, which keeps the remainder, until fewer than 16 bytes follow.
__attribute__((target("pclmul"))) std::uint32_t pass_folding(std::uint32_t crc,
                                                             std::span<const std::byte> bytes) {
  const TwoWords powers = {kFoldLow, kFoldHigh};
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size() - sizeof(TwoWords);
  TwoWords sum = load(p) ^ TwoWords { crc, 0 };
  for (p += sizeof sum; left >= sizeof sum; left -= sizeof sum, p += sizeof sum) {
    sum = __builtin_ia32_pclmulqdq128(sum, powers, 0x00) ^
          __builtin_ia32_pclmulqdq128(sum, powers, 0x11) ^ load(p);
  }
  std::array<std::byte, sizeof sum> folded;
  std::memcpy(folded.data(), &sum, sizeof sum);
  return pass(pass(0, folded), {p, left});
}

#endif

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kStart = 0xFFFFFFFFu;
#if defined(__x86_64__)
  if (bytes.size() >= kFoldFrom && __builtin_cpu_supports("pclmul")) {
    return ~pass_folding(kStart, bytes);
  }
#endif
  return ~pass(kStart, bytes);
}

}  // namespace cox
