// Clocks of nodes under MPI. Both nodes are one machine, so the true offsets are the planted ones.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/node_clocks.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

std::int64_t true_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Returns the ranks of the job, two a node if there are four.
std::unique_ptr<transport::Communicator> world_of_nodes() {
  auto runtime = transport::MpiRuntime::start(nullptr, nullptr);
  REQUIRE_MESSAGE(runtime.ok(), runtime.status().text());
  transport::MpiOptions options;
  options.ranks_per_node = 2;
  auto world = runtime->world(options);
  REQUIRE_MESSAGE(world.ok(), world.status().text());
  return std::move(*world);
}

std::int64_t node_of(const transport::Communicator& ranks) {
  return ranks.rank().value() / ranks.ranks_on_node();
}

double seconds_off(const ArrivalStamp& stamp, std::int64_t truth_ns) {
  return std::abs(static_cast<double>(static_cast<std::int64_t>(stamp.at_ns) - truth_ns)) * 1e-9;
}

}  // namespace

TEST_SUITE("clocks of nodes") {
  TEST_CASE("offsets that were planted are found within the stated error") {
    const auto ranks = world_of_nodes();
    constexpr std::int64_t kPlanted = 123'456'789'000;
    const std::int64_t planted = kPlanted * node_of(*ranks);
    auto clocks = NodeClocks::make(*ranks, [planted] { return true_ns() + planted; });
    REQUIRE_MESSAGE(clocks.ok(), clocks.status().text());
    for (int again = 0; again < 3; ++again) {
      const std::int64_t before = true_ns();
      const ArrivalStamp stamp = clocks->stamp();
      const std::int64_t after = true_ns();
      const auto error = static_cast<std::int64_t>(stamp.error_ns);
      CHECK(static_cast<std::int64_t>(stamp.at_ns) >= before - error);
      CHECK(static_cast<std::int64_t>(stamp.at_ns) <= after + error);
      CHECK(clocks->error().count() >= 0);
      CHECK(stamp.error_ns < static_cast<std::uint64_t>(kPlanted));
      if (node_of(*ranks) == 0) CHECK(seconds_off(stamp, before) < 60);
      const Status compared = clocks->compare([] {});
      CHECK_MESSAGE(compared.ok(), compared.text());
    }
  }

  TEST_CASE("skewed arrivals have their order, whatever the clocks of the nodes show") {
    const auto ranks = world_of_nodes();
    const std::int64_t planted = -777'000'000'000 * node_of(*ranks);
    auto clocks = NodeClocks::make(*ranks, [planted] { return true_ns() + planted; });
    REQUIRE(clocks.ok());
    struct Arriving {
      ArrivalStamp stamp;
      std::int64_t truth_ns = 0;
    };
    for (int turn = 0; turn < ranks->size(); ++turn) {
      const std::int64_t until = true_ns() + (ranks->rank().value() == turn ? 20'000'000 : 0);
      while (true_ns() < until) {
      }
      Arriving mine{clocks->stamp(), true_ns()};
      const auto all = gather_values(*ranks, mine);
      REQUIRE(all.ok());
      ArrivalStamp latest;
      std::int64_t last = 0;
      for (const Arriving& each : *all) {
        merge_into(latest, each.stamp);
        last = std::max(last, each.truth_ns);
      }
      const auto waited = waiting_seconds(mine.stamp, latest);
      REQUIRE(waited);
      // `truth_ns` was read slightly after the stamp, on every rank.
      const double bound = static_cast<double>(mine.stamp.error_ns + latest.error_ns) * 1e-9;
      const double truth = static_cast<double>(last - mine.truth_ns) * 1e-9;
      double most_late = 0;
      for (const Arriving& each : *all)
        most_late = std::max(most_late, static_cast<double>(each.stamp.error_ns) * 1e-9 +
                                            seconds_off(each.stamp, each.truth_ns));
      CHECK(*waited <= truth + bound + 2 * most_late);
      CHECK(*waited >= truth - 2 * bound - 2 * most_late);
    }
  }
}
