#include "coordinator/core/crc32.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

namespace {

std::uint32_t of(std::string_view text) {
  return cox::crc32(std::as_bytes(std::span(text.data(), text.size())));
}

// The definition, bit by bit.
std::uint32_t slow_crc(const std::vector<std::byte>& bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

TEST_SUITE_BEGIN("crc32");

TEST_CASE("the check has the values that zip files and others know") {
  CHECK(of("") == 0u);
  CHECK(of("a") == 0xE8B7BE43u);
  CHECK(of("123456789") == 0xCBF43926u);
}

TEST_CASE("the check is that of the definition at every length") {
  std::vector<std::byte> bytes;
  std::uint32_t state = 1;
  for (int length = 0; length < 300; ++length) {
    REQUIRE(cox::crc32(bytes) == slow_crc(bytes));
    state = state * 1664525u + 1013904223u;
    bytes.push_back(static_cast<std::byte>(state >> 24));
  }
}

TEST_SUITE_END();

}  // namespace
