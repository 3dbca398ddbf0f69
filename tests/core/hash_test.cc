#include "coordinator/core/hash.h"

#include <algorithm>
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
std::uint32_t slow_crc(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

TEST_SUITE_BEGIN("core");

TEST_CASE("FNV-1a has the published values, whatever the pieces") {
  const auto hash_of = [](std::string_view text) {
    cox::Fnv1a64 hash;
    hash.add(text);
    return hash.value();
  };
  CHECK(hash_of("") == 0xcbf29ce484222325u);
  CHECK(hash_of("a") == 0xaf63dc4c8601ec8cu);
  CHECK(hash_of("foobar") == 0x85944171f73967e8u);
  cox::Fnv1a64 pieces;
  pieces.add("foo");
  pieces.add("bar");
  CHECK(pieces.value() == hash_of("foobar"));
  cox::Fnv1a64 number;
  number.add(std::uint64_t{0x0201});
  CHECK(number.value() == hash_of(std::string_view("\1\2\0\0\0\0\0\0", 8)));
}

TEST_CASE("the check has the values that zip files and others know") {
  CHECK(of("") == 0u);
  CHECK(of("a") == 0xE8B7BE43u);
  CHECK(of("123456789") == 0xCBF43926u);
}

TEST_CASE("the check is that of the definition at every length and place") {
  std::vector<std::byte> bytes;
  std::uint32_t state = 1;
  for (int length = 0; length < 300; ++length) {
    for (std::size_t from = 0; from < std::min<std::size_t>(bytes.size(), 17); ++from) {
      const auto part = std::span(bytes).subspan(from);
      REQUIRE(cox::crc32(part) == slow_crc(part));
    }
    state = state * 1664525u + 1013904223u;
    bytes.push_back(static_cast<std::byte>(state >> 24));
  }
}

TEST_SUITE_END();

}  // namespace
