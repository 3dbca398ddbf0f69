#include "metrics/http/connections.h"

#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace cox::metrics;

namespace {

using Id = ConnectionTable::Id;
using Phase = ConnectionTable::Phase;

constexpr std::uint32_t kHere = 0x7f000001;
constexpr std::uint32_t kPeer = 0x0a000001;

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("at most half of the files that a process may open are connections") {
    CHECK(connection_limits(1024).total == 512);
    CHECK(connection_limits(20).total == 16);
    CHECK(connection_limits(std::numeric_limits<std::uint64_t>::max()).total == 4096);
  }

  TEST_CASE("a full table makes room: those that leave first, then the oldest that ask") {
    ConnectionTable table({4, 64, 64});
    const Id first = table.admit(kHere).id;
    const Id second = table.admit(kHere).id;
    const Id third = table.admit(kHere).id;
    const Id fourth = table.admit(kHere).id;
    CHECK_FALSE(table.set_phase(first, Phase::answering));
    CHECK_FALSE(table.set_phase(third, Phase::leaving));
    CHECK(table.admit(kHere).evicted == third);
    CHECK(table.admit(kHere).evicted == second);
    CHECK(table.admit(kHere).evicted == fourth);
    CHECK(table.size() == 4);
  }

  TEST_CASE("requests that are being answered go only when there is nothing else") {
    ConnectionTable table({2, 64, 64});
    const Id first = table.admit(kHere).id;
    const Id second = table.admit(kHere).id;
    table.set_phase(first, Phase::answering);
    table.set_phase(second, Phase::answering);
    CHECK(table.admit(kHere).evicted == first);
    CHECK(table.admit(kHere).evicted != second);
  }

  TEST_CASE("a peer that has its share loses its own oldest one, this machine has no share") {
    ConnectionTable table({100, 2, 64});
    const Id other = table.admit(kPeer + 1).id;
    const Id first = table.admit(kPeer).id;
    CHECK_FALSE(table.admit(kPeer).evicted);
    CHECK(table.admit(kPeer).evicted == first);
    CHECK(table.size() == 3);
    for (int i = 0; i < 50; ++i) CHECK_FALSE(table.admit(kHere).evicted);
    table.remove(other);
    CHECK_FALSE(table.admit(kPeer + 1).evicted);
  }

  TEST_CASE("pages in memory are limited: the oldest of too many goes") {
    ConnectionTable table({100, 64, 2});
    const Id first = table.admit(kHere).id;
    const Id second = table.admit(kHere).id;
    const Id third = table.admit(kHere).id;
    CHECK_FALSE(table.set_phase(second, Phase::answering));
    CHECK_FALSE(table.set_phase(first, Phase::answering));
    CHECK(table.set_phase(third, Phase::answering) == first);
    CHECK_FALSE(table.set_phase(second, Phase::leaving));
    CHECK_FALSE(table.set_phase(first, Phase::answering));  // no longer in the table
    CHECK(table.size() == 2);
  }

  TEST_CASE("no descriptors left: the worst one is told, until there is none") {
    ConnectionTable table({100, 64, 64});
    const Id first = table.admit(kHere).id;
    const Id second = table.admit(kPeer).id;
    CHECK(table.evict() == first);
    CHECK(table.evict() == second);
    CHECK_FALSE(table.evict());
  }

  TEST_CASE("limits hold whatever happens in which order") {
    const ConnectionLimits limits{40, 5, 10};
    ConnectionTable table(limits);
    std::mt19937 random(5);
    std::vector<Id> known;
    for (int i = 0; i < 20000; ++i) {
      const std::size_t before = table.size();
      const Id any = known.empty() ? 0 : known[random() % known.size()];
      if (random() % 2 == 0) {
        const std::uint32_t address = random() % 2 == 0 ? kHere : kPeer + random() % 20;
        const auto admitted = table.admit(address);
        known.push_back(admitted.id);
        REQUIRE(admitted.evicted != admitted.id);
        REQUIRE(table.size() == before + (admitted.evicted ? 0 : 1));
      } else if (random() % 3 == 0) {
        table.remove(any);
      } else {
        table.set_phase(any, static_cast<Phase>(random() % 3));
      }
      REQUIRE(table.size() <= limits.total);
    }
    while (table.evict()) continue;
    CHECK(table.size() == 0);
  }
}
