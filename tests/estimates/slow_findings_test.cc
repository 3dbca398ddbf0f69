#include "coordinator/estimates/slow_findings.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

SlowRank entry(std::int32_t rank, SlowState state, double ratio) {
  SlowRank slow;
  slow.rank = RankId(rank);
  slow.state = state;
  slow.slowdown_ratio = ratio;
  return slow;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("findings have confirmed ranks first, then suspected, then recovered, slowest first") {
    Slowness slowness = fresh_slowness(8);
    slowness.slow = {entry(1, SlowState::confirmed, 1.1), entry(4, SlowState::confirmed, 1.5)};
    slowness.watched = {entry(0, SlowState::recovered, 3), entry(5, SlowState::suspected, 1.2),
                        entry(6, SlowState::suspected, 1.4)};
    slowness.pace.slow.emplace().slowdown_ratio = 1.25;
    const SlowFindings told = slow_findings(slowness, {});
    std::vector<std::int32_t> order;
    for (const SlowRank& slow : told.ranks) order.push_back(slow.rank.value());
    CHECK(order == std::vector<std::int32_t>{4, 1, 6, 5, 0});
    CHECK(told.slowest()->rank == RankId(4));
    CHECK(told.find(RankId(5))->slowdown_ratio == 1.2);
    CHECK(told.find(RankId(2)) == nullptr);
    CHECK(told.job->slowdown_ratio == 1.25);
    CHECK(told.hosts.empty());
  }

  TEST_CASE("nobody is slowest while ranks are only suspected") {
    Slowness slowness = fresh_slowness(2);
    slowness.watched = {entry(1, SlowState::suspected, 2)};
    CHECK(slow_findings(slowness, {}).slowest() == nullptr);
    CHECK(SlowFindings{}.slowest() == nullptr);
  }

  TEST_CASE("findings are cut, and still count every rank; whole hosts are found") {
    constexpr std::int32_t kRanks = 4096;
    Slowness slowness = fresh_slowness(kRanks);
    slowness.reports.assign(kRanks, 100);
    std::vector<NodeId> nodes;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      nodes.emplace_back(rank / 8);
      if (rank < 320) slowness.slow.push_back(entry(rank, SlowState::confirmed, 1 + rank / 1e3));
    }
    const SlowFindings told = slow_findings(slowness, nodes);
    CHECK(told.ranks.size() == kSlowRanksTold);
    CHECK(told.confirmed == 320);
    CHECK(told.ranks.front().rank == RankId(319));
    REQUIRE(told.hosts.size() == kSlowHostsTold);
    CHECK(told.hosts.front().node == NodeId(39));
    CHECK(told.hosts.front().ranks == 8);
  }
}

}  // namespace cox
