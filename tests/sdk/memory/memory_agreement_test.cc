#include "sdk/src/memory/memory_agreement.h"

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "coordinator/testing/loopback.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::gather_problems;
using cox::detail::MeasuredRegion;
using cox::detail::MeasuredRegions;
using cox::detail::with_figures_of_root;

namespace {

constexpr std::int32_t kRanks = 3;

// Calls `body` with the communicator of each rank, on a thread for each.
void on_each_rank(const std::function<void(transport::Communicator&)>& body) {
  const cox::testing::LoopbackWorld world(kRanks);
  std::vector<std::thread> threads;
  for (std::int32_t r = 0; r < kRanks; ++r) {
    threads.emplace_back(
        [&body, ranks = world.communicator(RankId(r))]() mutable { body(*ranks), ranks.reset(); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(world.verify().ok());
}

// Returns a block that did not run, and one with two operators, measured differently on each rank.
MeasuredRegions regions_of(std::int32_t rank) {
  MeasuredRegion ran;
  for (const char* name : {"aten::mm", "aten::gelu"}) {
    planner::GraphOperator it;
    it.name = name;
    it.ns = 100 + rank;
    it.own_bytes = 200 + rank;
    it.asking_bytes = 300 + rank;
    it.backward_bytes = 400 + rank;
    ran.graph.operators.push_back(it);
  }
  return {std::nullopt, ran};
}

struct Figures {
  std::int64_t ns, own_bytes, asking_bytes, backward_bytes;
  friend bool operator==(const Figures&, const Figures&) = default;
};

std::vector<Figures> figures_of(const MeasuredRegions& regions) {
  std::vector<Figures> figures;
  for (const planner::GraphOperator& it : regions.back()->graph.operators)
    figures.push_back({it.ns, it.own_bytes, it.asking_bytes, it.backward_bytes});
  return figures;
}

planner::RankProblem problem_of(std::int32_t rank) {
  planner::RankProblem mine{{}, 1000 + rank, static_cast<std::uint64_t>(rank)};
  mine.problem.base_bytes = 7;
  mine.problem.most_recomputed = 0;
  mine.problem.stages.resize(static_cast<std::size_t>(rank));  // rank 0 measured nothing
  for (Stage& stage : mine.problem.stages) {
    stage.block = rank;
    stage.forward_us = std::int64_t{1} << 40;
    stage.options.back() = {true, 1, 2, 3, 4, 5, 6};
  }
  return mine;
}

}  // namespace

TEST_SUITE("memory agreement") {
  TEST_CASE("ranks with the same operators take the figures of rank 0") {
    on_each_rank([](transport::Communicator& ranks) {
      const std::int32_t rank = ranks.rank().value();
      const auto agreed = with_figures_of_root(ranks, regions_of(rank));
      REQUIRE(agreed.ok());
      CHECK_FALSE(agreed->front().has_value());
      CHECK((figures_of(*agreed) == figures_of(regions_of(0))));
    });
  }

  TEST_CASE("where a rank has other operators, all keep their own figures") {
    on_each_rank([](transport::Communicator& ranks) {
      const std::int32_t rank = ranks.rank().value();
      MeasuredRegions mine = regions_of(rank);
      if (rank == 2) mine.back()->graph.operators.back().name = "aten::relu";
      const auto agreed = with_figures_of_root(ranks, mine);
      REQUIRE(agreed.ok());
      CHECK((figures_of(*agreed) == figures_of(regions_of(rank))));
    });
  }

  TEST_CASE("ranks whose blocks did not run have no figures to exchange") {
    on_each_rank([](transport::Communicator& ranks) {
      const auto agreed = with_figures_of_root(ranks, MeasuredRegions(2));
      REQUIRE(agreed.ok());
      CHECK(agreed->size() == 2);
    });
  }

  TEST_CASE("rank 0 gets the problem of every rank as that rank has it, the others get nothing") {
    on_each_rank([](transport::Communicator& ranks) {
      const auto all = gather_problems(ranks, problem_of(ranks.rank().value()));
      REQUIRE(all.ok());
      const std::size_t problems = ranks.rank() == kRoot ? kRanks : 0;
      REQUIRE(all->size() == problems);
      for (std::size_t r = 0; r < all->size(); ++r) {
        const planner::RankProblem expected = problem_of(static_cast<std::int32_t>(r));
        CHECK(((*all)[r].problem == expected.problem));
        CHECK((*all)[r].limit_bytes == expected.limit_bytes);
        CHECK((*all)[r].samples == expected.samples);
      }
    });
  }
}
