#include "coordinator/testing/loopback.h"

#include <array>
#include <string>

#include "coordinator/transport/solo.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::testing {
namespace {

using namespace transport;

TEST_SUITE_BEGIN("loopback");

TEST_CASE("loopback does what every transport must do, at 1 to 8 ranks") {
  for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
    for (const ConformanceCase& item : conformance_cases()) {
      const LoopbackWorld world(ranks);
      for (const std::string& text : on_every_rank(world, ranks, item.run)) {
        CHECK_MESSAGE(text.empty(), item.name << ", " << ranks << " ranks: " << text);
      }
      CHECK(world.verify() == ok_status());
    }
  }
}

TEST_CASE("loopback does what every transport must do on pretended nodes") {
  for (const std::int32_t per_node : {1, 2, 3}) {
    LoopbackOptions options;
    options.ranks_per_node = per_node;
    const LoopbackWorld world(5, options);
    const auto results = on_every_rank(world, 5, [&](Communicator& c) -> std::string {
      const std::int32_t before = c.rank().value() / per_node * per_node;
      const std::int32_t expected = std::min(per_node, 5 - before);
      if (c.ranks_on_node() != expected) return "wrong ranks_on_node";
      if (c.size() != expected && c.shared_segment(64).ok()) return "shared between nodes";
      for (const ConformanceCase& item : conformance_cases()) {
        std::string text = item.run(c);
        if (!text.empty()) return std::string(item.name) + ": " + text;
      }
      return "";
    });
    for (const std::string& text : results) CHECK(text == "");
    CHECK(world.verify() == ok_status());
  }
}

TEST_CASE("the communicator of one rank does what every transport must do, without threads") {
  const std::unique_ptr<Communicator> alone = solo_communicator();
  for (const ConformanceCase& item : conformance_cases()) {
    CHECK_MESSAGE(item.run(*alone) == "", item.name);
  }
}

TEST_CASE("a shared segment over the limit is refused on every rank") {
  LoopbackOptions options;
  options.shared_segment_limit_bytes = 4096;
  const LoopbackWorld world(3, options);
  const auto results = on_every_rank(world, 3, [](Communicator& c) -> std::string {
    const Result<SharedSegment> large = c.shared_segment(4097);
    if (large.ok() || large.status().code() != StatusCode::resource_exhausted) return "not refused";
    return c.shared_segment(4096).ok() ? "" : "one that fits was refused";
  });
  for (const std::string& text : results) CHECK(text == "");
}

TEST_CASE("receive buffers hold garbage until the operation is done") {
  const LoopbackWorld world(2);
  const auto first = world.communicator(RankId(0));
  const auto second = world.communicator(RankId(1));
  std::array<std::byte, 4> given{};
  std::array<std::byte, 8> received{};
  Result<Request> a = first->start_all_gather(given, received);
  CHECK(received[0] != std::byte{0});
  std::array<std::byte, 8> elsewhere{};
  Result<Request> b = second->start_all_gather(given, elsewhere);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(*first->test(*a) == Progress::done);
  CHECK(received[0] == std::byte{0});
  CHECK(*second->test(*b) == Progress::done);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::testing
