#include "coordinator/core/crc32.h"

#include <array>

namespace cox {
namespace {

// tables[n][i]: what nibble i does to the remainder with n more nibbles behind it. One kilobyte in
// all: a signal is sealed once a step, when training has emptied the caches, and tables of bytes
// (8 KiB, nearly all of it touched) then cost four times as much in cache misses.
constexpr std::size_t kNibbles = 16;  // taken at once
using Tables = std::array<std::array<std::uint32_t, 16>, kNibbles>;

constexpr Tables make_tables() {
  Tables t{};
  for (std::uint32_t i = 0; i < 16; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 4; ++bit) c = (c & 1u) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
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

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
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
  return ~crc;
}

}  // namespace cox
