// Share assignment against brute force and against handing out unit by unit.
#include "coordinator/planner/share_assignment.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::RankCost;
using cox::ShareProblem;
using cox::testing::Random;
using Units = std::vector<std::uint64_t>;

// Returns a small hard problem: equal speeds, no fixed times, free ranks, very slow ones, caps,
// minima.
ShareProblem random_problem(std::uint64_t seed) {
  Random random(seed);
  ShareProblem problem;
  problem.units = 1 + random.below(9);
  const std::size_t ranks = 1 + random.below(4);
  const bool is_even = random.chance(0.2);
  const bool has_fixed = random.chance(0.5);
  for (std::size_t r = 0; r < ranks; ++r) {
    RankCost rank;
    rank.seconds_per_unit = is_even ? 0.25 : 0.1 + 3 * random.uniform();
    if (random.chance(0.3)) rank.seconds_per_unit = static_cast<double>(random.below(4));
    if (random.chance(0.05)) rank.seconds_per_unit = 1e300;
    if (has_fixed) rank.fixed_seconds = static_cast<double>(random.below(4)) / 2;
    if (random.chance(0.3)) rank.max_units = random.below(6);
    if (random.chance(0.3)) rank.min_units = random.below(3);
    problem.ranks.push_back(rank);
  }
  if (random.chance(0.7)) {
    for (std::size_t r = 0; r < ranks; ++r) problem.present.push_back(random.below(7));
  }
  return problem;
}

std::uint64_t moved(const Units& from, const Units& to) {
  std::uint64_t moves = 0;
  for (std::size_t r = 0; r < from.size(); ++r) {
    moves += from[r] > to[r] ? from[r] - to[r] : to[r] - from[r];
  }
  return moves;
}

// The least time of all whole assignments, and the fewest moves at this time.
struct Best {
  bool exists = false;
  double seconds = 0;
  std::uint64_t moves = 0;
};

class BruteForce {
 public:
  explicit BruteForce(const ShareProblem& problem)
      : problem_(problem), units_(problem.ranks.size()) {
    try_rank(0, problem.units);
  }
  Best best;

 private:
  void try_rank(std::size_t rank, std::uint64_t left) {
    if (rank == units_.size()) {
      if (left == 0) judge();
      return;
    }
    const RankCost& cost = problem_.ranks[rank];
    for (std::uint64_t n = cost.min_units; n <= std::min(left, cost.max_units); ++n) {
      units_[rank] = n;
      try_rank(rank + 1, left - n);
    }
  }
  void judge() {
    const double seconds = cox::slowest_rank(problem_.ranks, units_).seconds;
    const std::uint64_t moves = problem_.present.empty() ? 0 : moved(problem_.present, units_);
    const bool better =
        !best.exists || seconds < best.seconds || (seconds == best.seconds && moves < best.moves);
    if (better) best = {true, seconds, moves};
  }

  const ShareProblem& problem_;
  Units units_;
};

// Gives each unit to the rank that finishes it soonest, the lower rank on ties.
Units one_by_one(const ShareProblem& problem) {
  Units units;
  for (const RankCost& rank : problem.ranks) units.push_back(rank.min_units);
  for (auto left = problem.units - std::accumulate(units.begin(), units.end(), std::uint64_t{0});
       left > 0; --left) {
    std::size_t soonest = units.size();
    for (std::size_t r = 0; r < units.size(); ++r) {
      if (units[r] >= problem.ranks[r].max_units) continue;
      const auto seconds = [&](std::size_t i) {
        return cox::seconds_of(problem.ranks[i], units[i] + 1);
      };
      if (soonest == units.size() || seconds(r) < seconds(soonest)) soonest = r;
    }
    ++units[soonest];
  }
  return units;
}

// Does the same with a heap of the next finishing times.
Units from_a_heap(const ShareProblem& problem) {
  using Next = std::pair<double, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  Units units;
  const auto offer = [&](std::size_t r) {
    if (units[r] >= problem.ranks[r].max_units) return;
    queue.push({cox::seconds_of(problem.ranks[r], units[r] + 1), r});
  };
  for (const RankCost& rank : problem.ranks) units.push_back(rank.min_units);
  for (std::size_t r = 0; r < units.size(); ++r) offer(r);
  for (auto left = problem.units - std::accumulate(units.begin(), units.end(), std::uint64_t{0});
       left > 0; --left) {
    const std::size_t r = queue.top().second;
    queue.pop();
    ++units[r];
    offer(r);
  }
  return units;
}

// Returns thousands of ranks, mostly alike, with caps that matter for some or for nearly all.
ShareProblem crowd(std::uint64_t seed) {
  Random random(seed);
  ShareProblem problem;
  const std::size_t ranks = 500 + random.below(2500);
  problem.units = ranks * (1 + random.below(12)) + random.below(ranks);
  const std::uint64_t kinds = 1 + random.below(4);
  const double scatter = random.chance(0.5) ? 0.1 : 0;
  const double capped = random.chance(0.5) ? 0.9 : 0.1;
  for (std::size_t r = 0; r < ranks; ++r) {
    RankCost rank{0.5, static_cast<double>(1 + random.below(kinds)) + scatter * random.uniform()};
    if (random.chance(capped)) rank.max_units = 1 + random.below(20);
    if (random.chance(0.1)) rank.min_units = 1;
    problem.ranks.push_back(rank);
  }
  problem.ranks[0].max_units = cox::kNoUnitCap;
  return problem;
}

ShareProblem large_problem(std::uint64_t seed) {
  Random random(seed);
  ShareProblem problem;
  problem.units = 1 + random.below(3000);
  const std::size_t ranks = 1 + random.below(40);
  const bool has_plateaus = random.chance(0.2);
  for (std::size_t r = 0; r < ranks; ++r) {
    RankCost rank{random.uniform(), 0.001 + random.uniform()};
    if (has_plateaus) rank = {1e6, 1e-14 * static_cast<double>(random.below(3))};
    if (random.chance(0.2)) rank.min_units = random.below(1 + problem.units / ranks);
    if (random.chance(0.2)) rank.max_units = rank.min_units + random.below(100);
    problem.ranks.push_back(rank);
  }
  problem.ranks[0].max_units = cox::kNoUnitCap;
  return problem;
}

ShareProblem of_speeds(std::uint64_t units, const std::vector<double>& speeds) {
  ShareProblem problem;
  problem.units = units;
  for (const double speed : speeds) problem.ranks.push_back({0, 1 / speed});
  return problem;
}

}  // namespace

TEST_SUITE("planner") {
  TEST_CASE("an assignment is the brute-force optimum, with the fewest moves, 100,000 instances") {
    int unmeetable = 0;
    for (std::uint64_t seed = 1; seed <= 100000; ++seed) {
      const ShareProblem problem = random_problem(seed);
      const Best best = BruteForce(problem).best;
      const auto found = cox::assign_shares(problem);
      CAPTURE(seed);
      REQUIRE(found.ok() == best.exists);
      if (!found.ok()) {
        ++unmeetable;
        REQUIRE(found.status().code() == cox::StatusCode::failed_precondition);
        REQUIRE(found.status().message().find("rank ") != std::string::npos);
        continue;
      }
      const Units& units = found->units;
      REQUIRE(std::accumulate(units.begin(), units.end(), std::uint64_t{0}) == problem.units);
      for (std::size_t r = 0; r < units.size(); ++r) {
        REQUIRE(units[r] >= problem.ranks[r].min_units);
        REQUIRE(units[r] <= problem.ranks[r].max_units);
      }
      REQUIRE(found->seconds == best.seconds);
      REQUIRE(cox::slowest_rank(problem.ranks, units).seconds == best.seconds);
      if (!problem.present.empty()) REQUIRE(moved(problem.present, units) == best.moves);
    }
    CHECK(unmeetable > 1000);
    CHECK(unmeetable < 50000);
  }

  TEST_CASE("without present units every unit goes to the rank that finishes it soonest") {
    for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
      const ShareProblem problem = large_problem(seed);
      const auto found = cox::assign_shares(problem);
      CAPTURE(seed);
      REQUIRE(found.ok());
      REQUIRE(found->units == one_by_one(problem));
    }
  }

  TEST_CASE("of thousands of ranks it is what a heap would hand out, ties and caps included") {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      const ShareProblem problem = crowd(seed);
      const auto found = cox::assign_shares(problem);
      CAPTURE(seed);
      REQUIRE(found.ok());
      REQUIRE(found->units == from_a_heap(problem));
    }
  }

  TEST_CASE("units that are where they should be stay, and one that is not moves alone") {
    ShareProblem problem = of_speeds(16, {1, 1, 2, 4});
    problem.present = {2, 2, 4, 8};
    CHECK(cox::assign_shares(problem)->units == Units{2, 2, 4, 8});
    problem.present = {3, 2, 4, 7};
    CHECK(cox::assign_shares(problem)->units == Units{2, 2, 4, 8});
    problem = of_speeds(5, {1, 1, 1, 1});
    problem.present = {1, 1, 2, 1};
    CHECK(cox::assign_shares(problem)->units == Units{1, 1, 2, 1});
    problem.present.clear();
    CHECK(cox::assign_shares(problem)->units == Units{2, 1, 1, 1});
  }

  TEST_CASE("it is never worse than the even split") {
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      ShareProblem problem = large_problem(seed);
      for (RankCost& rank : problem.ranks) rank.min_units = 0, rank.max_units = cox::kNoUnitCap;
      const Units even = cox::units_of_shares(problem.units, {}, problem.ranks.size());
      REQUIRE(cox::assign_shares(problem)->seconds <=
              cox::slowest_rank(problem.ranks, even).seconds);
    }
  }

  TEST_CASE("what cannot be met is said with ranks and numbers") {
    ShareProblem problem = of_speeds(16, {1, 1, 2, 4});
    for (RankCost& rank : problem.ranks) rank.max_units = 3;
    problem.ranks[2].max_units = 2;
    CHECK(cox::assign_shares(problem).status().message() ==
          "the caps of the ranks add up to 11 units, the batch has 16 (rank 2: 2, rank 0: 3, "
          "rank 1: 3, rank 3: 3); raise caps or take a smaller batch");
    problem = of_speeds(2, {1, 1, 2, 4});
    for (RankCost& rank : problem.ranks) rank.min_units = 1;
    CHECK(cox::assign_shares(problem).status().message() ==
          "the minima of the ranks add up to 4 units, the batch has 2 (rank 0: 1, rank 1: 1, "
          "rank 2: 1, rank 3: 1); lower the minimum or take a larger batch");
    problem.ranks[1] = {0, 1, 5, 4};
    CHECK(cox::assign_shares(problem).status().message() ==
          "rank 1 must take at least 5 units but can take at most 4; lower its minimum or raise "
          "its cap");
  }

  TEST_CASE("numbers out of range are refused") {
    const std::vector<ShareProblem> refused = {
        {},
        {0, {{0, 1}}, {}},
        {(1ull << 31) + 1, {{0, 1}}, {}},
        {4, {{0, 1}}, {1, 2}},
        {4, {{0, -1}}, {}},
        {4, {{std::numeric_limits<double>::infinity(), 1}}, {}},
        {4, {{0, std::numeric_limits<double>::quiet_NaN()}}, {}},
    };
    for (const ShareProblem& problem : refused) {
      CHECK(cox::assign_shares(problem).status().code() == cox::StatusCode::invalid_argument);
    }
  }

  TEST_CASE("2^31 units of ranks that all end at the same time are placed at once") {
    ShareProblem problem{1ull << 31, std::vector<RankCost>(1000, RankCost{1, 0}), {}};
    const auto found = cox::assign_shares(problem);
    REQUIRE(found.ok());
    CHECK(found->units[0] == 1ull << 31);
    CHECK(found->seconds == 1);
  }

  TEST_CASE("the rest goes to the largest remainders, as sorting would have it") {
    Random random(12);
    for (int run = 0; run < 500; ++run) {
      std::vector<std::uint32_t> shares(1 + random.below(40));
      for (std::uint32_t& share : shares) share = static_cast<std::uint32_t>(random.below(4));
      shares[0] += 1;
      const std::uint64_t units = 1 + random.below(200);
      const auto all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
      Units expected;
      std::vector<std::size_t> order;
      for (std::size_t r = 0; r < shares.size(); ++r) {
        expected.push_back(units * shares[r] / all);
        order.push_back(r);
      }
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return units * shares[a] % all > units * shares[b] % all;
      });
      const auto given = std::accumulate(expected.begin(), expected.end(), std::uint64_t{0});
      for (std::size_t i = 0; i < units - given; ++i) ++expected[order[i]];
      REQUIRE(cox::units_of_shares(units, shares, shares.size()) == expected);
    }
  }

  TEST_CASE("shares mean units by the largest remainder") {
    const std::vector<std::uint32_t> shares = {1, 0, 2, 3};
    CHECK(cox::units_of_shares(10, shares, 4) == Units{2, 0, 3, 5});
    CHECK(cox::units_of_shares(10, {}, 4) == Units{3, 3, 2, 2});
    CHECK(cox::units_of_shares(6, shares, 4) == Units{1, 0, 2, 3});
  }
}
