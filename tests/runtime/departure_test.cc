// A rank that leaves while others wait for it in a later round gets an error, on one node and
// across nodes. Ranks that leave together get none.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/runtime/control_plane.h"
#include "coordinator/testing/loopback.h"
#include "coordinator/transport/wait.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using transport::MarkClock;

ControlPlaneSetup setup_of(std::int32_t ranks) {
  ControlPlaneSetup setup;
  setup.job.world_size = ranks;
  setup.now = [] { return UnixTime{1}; };
  return setup;
}

RankSignal last_of(const ControlPlane& plane, RankId rank) {
  RankSignal signal;
  signal.rank = rank;
  signal.incarnation = plane.job().incarnation;
  return signal;
}

// Returns the result of each rank's finish(). Rank 1 finishes while the others wait in round 3.
std::vector<std::string> leave_alone(std::int32_t ranks, std::int32_t ranks_per_node,
                                     std::uint64_t round_of_the_others) {
  testing::LoopbackOptions options;
  options.ranks_per_node = ranks_per_node;
  const testing::LoopbackWorld world(ranks, options);
  std::atomic<bool> has_left{false};
  std::atomic<std::int32_t> looked{0};  // ranks that no longer wait
  return transport::on_every_rank(world, ranks, [&](transport::Communicator& c) -> std::string {
    auto plane = ControlPlane::start(c, setup_of(c.size()));
    if (!plane.ok()) return plane.status().text();
    ControlPlane& mine = **plane;
    const auto begin = MarkClock::now() - std::chrono::seconds(10);
    if (c.rank() == RankId(1)) {
      mine.mark().begin_round(RoundId(3), begin);
      const Status left = mine.finish(last_of(mine, c.rank()));
      has_left = true;
      return left.text();
    }
    mine.mark().begin_round(RoundId(round_of_the_others), begin);
    mine.mark().enter(Activity::waiting, StepId(3), begin);
    for (int i = 0; !has_left && (round_of_the_others >= 3 || i < 60); ++i) {
      mine.pump();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::string seen;
    for (const RankMark& mark : departed_before(RoundId(round_of_the_others), mine.marks_here())) {
      seen += "departed " + std::to_string(mark.rank.value());
    }
    mine.mark().enter(Activity::outside, StepId(3), MarkClock::now());
    for (++looked; looked < ranks - 1;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Status left = mine.finish(last_of(mine, c.rank()));
    return left.ok() ? seen : left.text();
  });
}

TEST_SUITE("runtime.departure") {
  TEST_CASE("a rank that leaves while others wait for it hears whom it keeps, and they see it") {
    const auto ended = leave_alone(3, 0, 3);
    CHECK(ended[1].find("rank 0 waiting for this one in step 3") != std::string::npos);
    CHECK(ended[0] == "departed 1");
    CHECK(ended[2] == "departed 1");
  }

  TEST_CASE("a rank that leaves after the round in which others still wait is none") {
    const auto ended = leave_alone(3, 0, 2);
    for (const std::string& text : ended) CHECK((text == "ok" || text.empty()));
  }
}

}  // namespace
}  // namespace cox::runtime
