#include <map>
#include <random>

#include "sdk/src/memory/counting_allocator.h"

#include <doctest/doctest.h>

using cox::detail::AddressTable;

namespace {

const void* address(std::uint64_t number) {
  return reinterpret_cast<const void*>(number * 64);
}

}  // namespace

TEST_CASE("an address is found with its bytes once, then it is unknown") {
  AddressTable table;
  CHECK(table.insert(address(7), 100) == 0);
  CHECK(table.erase(address(7)) == 100);
  CHECK(table.erase(address(7)) == 0);
}

TEST_CASE("inserting a known address returns the bytes it had before") {
  AddressTable table;
  CHECK(table.insert(address(7), 100) == 0);
  CHECK(table.insert(address(7), 30) == 100);
  CHECK(table.erase(address(7)) == 30);
}

TEST_CASE(
    "the table agrees with a map over random inserts and erases, in few and in many addresses") {
  for (const std::uint64_t range : {50u, 3000u, 1000000u}) {
    CAPTURE(range);
    std::mt19937_64 random(range);
    AddressTable table;
    std::map<const void*, std::int64_t> expected;
    bool same = true;
    for (int i = 0; i < 60000; ++i) {
      const void* at = address(1 + random() % range);
      const auto known = expected.find(at);
      const std::int64_t before = known == expected.end() ? 0 : known->second;
      if (random() % 2 == 0) {
        const auto bytes = static_cast<std::int64_t>(1 + random() % 1000);
        same = same && table.insert(at, bytes) == before;
        expected[at] = bytes;
      } else {
        same = same && table.erase(at) == before;
        expected.erase(at);
      }
    }
    for (const auto& [at, bytes] : expected) same = same && table.erase(at) == bytes;
    CHECK(same);
  }
}
