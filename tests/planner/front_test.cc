// Fronts and budgets against all plans of small problems, and the law of budgets on larger ones.
#include "coordinator/planner/front.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "coordinator/planner/memory_problem.h"
#include "tests/planner/random_problem.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using planner::FrontLimits;
using planner::TieBreak;
using test::Caps;
using test::Copies;
using test::Levels;
using test::PricedPlan;

struct Range {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

Range peaks(const std::vector<PricedPlan>& plans) {
  Range range{plans.front().peak_bytes, plans.front().peak_bytes};
  for (const PricedPlan& p : plans) {
    range.low = std::min(range.low, p.peak_bytes);
    range.high = std::max(range.high, p.peak_bytes);
  }
  return range;
}

void check_point(const MemoryProblem& problem, const MemoryPoint& point) {
  const planner::ScheduledStep step = planner::schedule(problem, point.actions);
  CHECK(step.peak_bytes == point.peak_bytes);
  CHECK(step.added_us == point.added_us);
  CHECK(planner::is_permitted(problem, point.actions));
}

// Checks one budget of a small problem against the table of all plans.
void check_budget(const MemoryProblem& problem, const std::vector<PricedPlan>& plans,
                  std::int64_t budget, TieBreak tie_break) {
  const auto answer = planner::solve_budget(problem, budget, 4096, tie_break);
  REQUIRE(answer.ok());
  CHECK(answer->is_exact());
  const std::int64_t want = test::least_added(plans, budget);
  REQUIRE(answer->best.has_value() == (want >= 0));
  if (want < 0) {
    CHECK(answer->least_peak_bytes == peaks(plans).low);
    return;
  }
  CHECK(answer->best->added_us == want);
  CHECK(answer->best->peak_bytes <= budget);
  check_point(problem, *answer->best);
  if (tie_break == TieBreak::any) return;
  for (const PricedPlan& p : plans)
    CHECK_FALSE((p.added_us == want && p.peak_bytes < answer->best->peak_bytes));
}

// Checks that the plan for a budget fits, and is as fast as the front promises.
void check_lookup(const MemoryProblem& problem, const planner::SolvedFront& solved,
                  const std::vector<PricedPlan>& plans, std::int64_t budget) {
  const auto index = lookup(solved.front, budget);
  if (!index) return;
  const MemoryPoint& point = solved.front[*index];
  check_point(problem, point);
  CHECK(point.peak_bytes <= budget);
  const std::int64_t want = test::least_added(plans, budget);
  CHECK(point.added_us >= want);
  CHECK(point.added_us - solved.gap_us <= want);
}

// Checks 200 budgets from below the least to above the largest peak.
void check_law(const MemoryProblem& problem, const planner::SolvedFront& solved) {
  const MemoryFront& front = solved.front;
  const std::int64_t low = front.front().peak_bytes;
  const std::int64_t span = front.back().peak_bytes - low;
  std::int64_t slowest_allowed = front.front().added_us;
  for (std::int64_t i = -10; i < 190; ++i) {
    const std::int64_t budget = low + span * i / 180;
    const auto index = lookup(front, budget);
    REQUIRE(index.has_value() == (budget >= low));
    if (!index) continue;
    const planner::ScheduledStep step = planner::schedule(problem, front[*index].actions);
    CHECK(step.peak_bytes <= budget);
    CHECK(step.added_us <= slowest_allowed);
    CHECK(planner::is_permitted(problem, front[*index].actions));
    slowest_allowed = step.added_us;
  }
}

// Checks four budgets of a small problem.
void check_small(const MemoryProblem& problem, testing::Random& random) {
  REQUIRE(planner::validate(problem).ok());
  const std::vector<PricedPlan> plans = test::all_plans(problem);
  if (plans.empty()) {
    CHECK_FALSE(planner::solve_budget(problem, 1000, 4096, TieBreak::any).ok());
    CHECK_FALSE(planner::solve_front(problem).ok());
    return;
  }
  const Range range = peaks(plans);
  const auto span = static_cast<std::uint64_t>(range.high - range.low + 3);
  for (int b = 0; b < 4; ++b) {
    const auto budget = range.low - 1 + static_cast<std::int64_t>(random.below(span));
    check_budget(problem, plans, budget, b == 0 ? TieBreak::named : TieBreak::any);
  }
}

// Returns one stage with several actions of the same cost. Full recompute has the least enum value.
MemoryProblem tied_stage(std::initializer_list<MemoryAction> allowed) {
  MemoryProblem problem;
  problem.copy_bytes_per_ms = 1;
  Stage stage;
  for (const MemoryAction action : allowed)
    stage.options[static_cast<std::size_t>(action)] = {true, 5, 7, 7, 3, 0};
  problem.stages.push_back(stage);
  return problem;
}

TEST_SUITE("planner.front") {
  TEST_CASE("every budget of 3,000 small problems gives the best of all their plans") {
    testing::Random random(11);
    for (int i = 0; i < 3000; ++i) {
      const Copies copies = i % 3 == 0 ? Copies::none : Copies::some;
      check_small(test::wild_problem(random, 1 + random.below(5), copies, Caps::maybe), random);
    }
  }

  TEST_CASE("so does every budget of 2,000 small problems with levels of recompute") {
    testing::Random random(18);
    for (int i = 0; i < 2000; ++i) {
      const Copies copies = i % 3 == 0 ? Copies::none : Copies::some;
      check_small(
          test::wild_problem(random, 1 + random.below(4), copies, Caps::maybe, Levels::some),
          random);
    }
  }

  TEST_CASE("of actions that cost the same the lightest is named") {
    using A = MemoryAction;
    const struct {
      std::initializer_list<A> allowed;
      A named;
    } kCases[] = {{{A::recompute, A::recompute_7, A::keep}, A::keep},
                  {{A::recompute, A::recompute_7, A::recompute_2}, A::recompute_2},
                  {{A::recompute, A::recompute_7, A::tile}, A::recompute_7},
                  {{A::tile, A::offload, A::recompute}, A::recompute},
                  {{A::tile, A::offload}, A::offload}};
    for (const auto& c : kCases) {
      const MemoryProblem problem = tied_stage(c.allowed);
      const auto answer = planner::solve_budget(problem, 100, 64, TieBreak::named);
      REQUIRE(answer.ok());
      REQUIRE(answer->best.has_value());
      CHECK(answer->best->actions.front() == c.named);
      const auto solved = planner::solve_front(problem);
      REQUIRE(solved.ok());
      CHECK(solved->front.front().actions.front() == c.named);
    }
  }

  // Partial recompute costs as much memory as keep, and more time. The additional time lets a copy
  // end before the middle backward needs the copy's room.
  TEST_CASE("an action that only costs time is chosen where a copy needs that time") {
    MemoryProblem problem;
    problem.copy_bytes_per_ms = 1;
    problem.stages.resize(4);
    for (Stage& stage : problem.stages) {
      stage.forward_us = 1000;
      stage.options[0] = {true, 0, 0, 1, 0, 0};
    }
    problem.stages[0].options[0].allowed = false;
    problem.stages[0].options[2] = {true, 0, 0, 1, 0, 10};
    problem.stages[2].options[0].backward_high_bytes = 8;
    const auto level = static_cast<std::size_t>(recompute_level(1));
    problem.stages[3].options[level] = {true, 0, 0, 1, 8000, 0};
    const std::vector<PricedPlan> plans = test::all_plans(problem);
    REQUIRE(plans.size() == 2);
    for (const std::int64_t budget : {10, 11, 12, 17, 18, 19})
      check_budget(problem, plans, budget, TieBreak::any);
    CHECK(planner::solve_budget(problem, 12, 64, TieBreak::any)->best->actions.back() ==
          recompute_level(1));
  }

  TEST_CASE("the cap on recomputed stages counts every level") {
    MemoryProblem problem;
    for (int i = 0; i < 3; ++i) {
      Stage stage;
      stage.options[0] = {true, 100, 100, 100, 0, 0};
      stage.options[static_cast<std::size_t>(recompute_level(2))] = {true, 40, 100, 100, 1, 0};
      stage.options[1] = {true, 10, 100, 100, 5, 0};
      problem.stages.push_back(stage);
    }
    for (const std::int32_t most : {0, 1, 2, 3}) {
      problem.most_recomputed = most;
      const auto solved = planner::solve_front(problem);
      REQUIRE(solved.ok());
      for (const MemoryPoint& point : solved->front) {
        CHECK(std::ranges::count_if(point.actions, is_recompute) <= most);
        CHECK(planner::schedule(problem, point.actions).recomputed ==
              std::ranges::count_if(point.actions, is_recompute));
      }
      const auto least = 100 + 2 * std::int64_t{100} - 90 * std::min(most, 2);
      CHECK(solved->front.front().peak_bytes == least);
    }
  }

  TEST_CASE("the front of a small problem misses no more than its gap, and none without copies") {
    testing::Random random(12);
    for (int i = 0; i < 1000; ++i) {
      const Copies copies = i % 2 == 0 ? Copies::none : Copies::some;
      const Caps caps = i % 4 < 2 ? Caps::none : Caps::maybe;
      const Levels levels = i % 16 < 8 ? Levels::none : Levels::some;
      const std::size_t stages = 1 + random.below(levels == Levels::none ? 5 : 4);
      const MemoryProblem problem = test::wild_problem(random, stages, copies, caps, levels);
      const std::vector<PricedPlan> plans = test::all_plans(problem);
      if (plans.empty()) continue;
      FrontLimits limits;
      limits.most_budgets = i % 8 < 4 ? 64 : 3;
      const auto solved = planner::solve_front(problem, limits);
      REQUIRE(solved.ok());
      if (copies == Copies::none && caps == Caps::none) {
        CHECK(solved->is_exact());
        CHECK(solved->front.front().peak_bytes == peaks(plans).low);
      }
      for (std::int64_t budget = peaks(plans).low; budget <= peaks(plans).high; ++budget)
        check_lookup(problem, *solved, plans, budget);
    }
  }

  TEST_CASE("a coarse front still misses no more than its gap") {
    testing::Random random(13);
    for (int i = 0; i < 200; ++i) {
      const MemoryProblem problem = test::wild_problem(random, 6, Copies::none, Caps::none);
      const std::vector<PricedPlan> plans = test::all_plans(problem);
      FrontLimits limits;
      limits.most_points = 2 + random.below(6);
      const auto solved = planner::solve_front(problem, limits);
      REQUIRE(solved.ok());
      for (std::int64_t budget = peaks(plans).low; budget <= peaks(plans).high; ++budget)
        check_lookup(problem, *solved, plans, budget);
    }
  }

  TEST_CASE("at 200 budgets a graph the peak fits and more bytes never take more time") {
    testing::Random random(14);
    for (int i = 0; i < 120; ++i) {
      const Copies copies = i % 4 == 0 ? Copies::some : Copies::none;
      const Levels levels = i % 2 == 0 ? Levels::none : Levels::some;
      const MemoryProblem problem = test::block_chain(random, 4 + random.below(21), copies, levels);
      FrontLimits limits;
      limits.most_points = i % 3 == 0 ? 24 : 512;
      limits.most_budgets = 8;
      limits.most_labels = 256;
      const auto solved = planner::solve_front(problem, limits);
      REQUIRE(solved.ok());
      check_law(problem, *solved);
    }
  }

  TEST_CASE("numbers at the end of their range are planned with as others are") {
    constexpr std::int64_t kMost = planner::kMaxStageValue;
    testing::Random random(17);
    for (int i = 0; i < 60; ++i) {
      MemoryProblem problem = test::wild_problem(random, 40, Copies::some, Caps::none);
      problem.base_bytes = kMost;
      problem.copy_bytes_per_ms = i % 2 == 0 ? kMost : kMost / 1000;
      for (Stage& stage : problem.stages) {
        if (random.chance(0.5)) stage.forward_us = stage.backward_us = kMost;
        for (StageOption& o : stage.options) {
          if (random.chance(0.5)) o.kept_bytes = o.forward_high_bytes = kMost;
          if (random.chance(0.5)) o.backward_high_bytes = o.added_us = kMost;
          if (o.copied_bytes > 0) o.copied_bytes = kMost - o.copied_bytes;
        }
      }
      REQUIRE(planner::validate(problem).ok());
      const auto solved = planner::solve_front(problem, {64, 6, 64, 100'000});
      REQUIRE(solved.ok());
      for (const MemoryPoint& point : solved->front) check_point(problem, point);
      constexpr auto kEnd = std::numeric_limits<std::int64_t>::max();
      for (const std::int64_t budget : {kEnd, -kEnd, std::int64_t{0}}) {
        const auto answer = planner::solve_budget(problem, budget, 64, TieBreak::any);
        REQUIRE(answer.ok());
        CHECK(answer->best.has_value() == (budget == kEnd));
        if (answer->best) check_point(problem, *answer->best);
      }
    }
  }

  TEST_CASE("the same problem gives the same front") {
    testing::Random random(15);
    const MemoryProblem problem = test::block_chain(random, 16, Copies::some);
    const auto once = planner::solve_front(problem);
    const auto again = planner::solve_front(problem);
    REQUIRE(once.ok());
    REQUIRE(again.ok());
    CHECK(once->front == again->front);
    CHECK(once->labels == again->labels);
  }

  TEST_CASE("tighter limits are honoured and show as a gap") {
    testing::Random random(16);
    const MemoryProblem problem = test::block_chain(random, 40, Copies::some);
    FrontLimits limits;
    limits.most_budgets = 2;
    limits.most_labels = 4;
    const auto few = planner::solve_front(problem, limits);
    REQUIRE(few.ok());
    CHECK(few->gap_us > 0);
    check_law(problem, *few);
    CHECK_FALSE(planner::solve_front(problem, {1, 1, 1, 1}).ok());
    CHECK_FALSE(planner::solve_front(problem, {2, 0, 1, 1}).ok());
  }
}

}  // namespace
}  // namespace cox
