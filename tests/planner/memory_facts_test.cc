#include "coordinator/planner/memory_facts.h"

#include <numeric>
#include <string>
#include <vector>

#include "metrics/records/planning_files.h"
#include "tests/planner/random_problem.h"

#include <doctest/doctest.h>

using namespace cox;
using planner::RankProblem;

namespace {

// Two blocks between two gaps; recompute frees `interior` bytes of each.
MemoryProblem problem_of(std::int64_t interior, std::int64_t forward_us) {
  MemoryProblem problem;
  problem.base_bytes = 1000;
  for (const std::int32_t block : {kGap, 0, 1, kGap}) {
    Stage stage;
    stage.block = block;
    stage.forward_us = forward_us;
    stage.backward_us = 2 * forward_us;
    stage.options[0] = {true, block == kGap ? 0 : interior, 10, 10, 0, 0};
    if (block != kGap) stage.options[1] = {true, 1, interior, interior, forward_us, 0};
    problem.stages.push_back(stage);
  }
  return problem;
}

}  // namespace

TEST_SUITE("memory facts") {
  TEST_CASE("ranks with equal bytes share a front, and the slowest one's times count") {
    auto facts = planner::memory_facts(
        {{problem_of(500, 10), 4000}, {problem_of(900, 10), 8000}, {problem_of(500, 30), 4000}}, 2);
    REQUIRE(facts.ok());
    REQUIRE(facts->models.size() == 2);
    CHECK(facts->model_of_rank == std::vector<std::uint32_t>{0, 1, 0});
    CHECK(facts->limit_bytes == std::vector<std::int64_t>{4000, 8000, 4000});
    CHECK(facts->models[0].step_us == 4 * 3 * 30);
    CHECK(facts->models[0].kept_bytes == std::vector<std::int64_t>{500, 500});
    const MemoryFront& front = facts->models[0].front;
    CHECK(front.back().added_us == 0);
    CHECK(front.back().actions == std::vector<MemoryAction>(2, MemoryAction::keep));
    for (const MemoryPoint& point : front) CHECK(point.actions.size() == 2);
    CHECK(validate(*facts, 3, 2).ok());
  }

  TEST_CASE("plans go by the number of a block, whatever the order in which blocks run") {
    MemoryProblem problem = problem_of(500, 10);
    problem.stages[1].block = 3;  // runs first; the only block that can be recomputed
    problem.stages[2].block = 1;
    problem.stages[2].options[0].kept_bytes = 40;
    problem.stages[2].options[1].allowed = false;
    const auto facts = planner::memory_facts({{problem, 0}}, 4);
    REQUIRE(facts.ok());
    const MemoryModel& model = facts->models[0];
    CHECK(model.kept_bytes == std::vector<std::int64_t>{0, 40, 0, 500});
    using enum MemoryAction;
    CHECK(model.front.front().actions == std::vector<MemoryAction>{keep, keep, keep, recompute});
    CHECK(model.front.back().actions == std::vector<MemoryAction>(4, keep));
    CHECK(validate(*facts, 1, 4).ok());
    const std::vector<std::string> names = {"never", "last", "never", "first"};
    CHECK(planner::least_peak_text(problem, model, names).find("block first") != std::string::npos);
  }

  TEST_CASE("stages that are no block of the job, or of one block, are refused") {
    for (const std::int32_t block : {0, 2, -2}) {
      MemoryProblem problem = problem_of(500, 10);
      problem.stages[2].block = block;
      const auto facts = planner::memory_facts({{problem, 0}}, 2);
      CHECK(facts.status().code() == StatusCode::invalid_argument);
      CHECK(facts.status().message().find(std::to_string(block)) != std::string::npos);
    }
  }

  TEST_CASE("the parts of a peak add up to it, whatever the plan, copies among them") {
    testing::Random random(17);
    for (int i = 0; i < 300; ++i) {
      const MemoryProblem problem = cox::test::wild_problem(
          random, 1 + random.below(7), cox::test::Copies::some, cox::test::Caps::none);
      std::vector<MemoryAction> actions;
      for (const Stage& stage : problem.stages) {
        auto action = static_cast<MemoryAction>(random.below(4));
        while (!stage.option(action).allowed) action = static_cast<MemoryAction>(random.below(4));
        actions.push_back(action);
      }
      const planner::PeakParts parts = planner::parts_of_peak(problem, actions);
      const std::int64_t sum =
          std::accumulate(parts.stage_bytes.begin(), parts.stage_bytes.end(), parts.base_bytes);
      CAPTURE(i);
      CHECK(sum == planner::schedule(problem, actions).peak_bytes);
    }
  }

  TEST_CASE("the least peak is told block by block, the largest first, and outside of blocks") {
    constexpr std::int64_t kMib = 1 << 20;
    MemoryProblem problem;
    problem.base_bytes = 700 * kMib;
    std::vector<std::string> names;
    for (std::int32_t s = -1; s < 7; ++s) {
      Stage stage;
      stage.block = s;
      const std::int64_t kept = s < 0 ? 3 : s + 1;
      stage.options[0] = {true, kept * kMib, 2 * kept * kMib, 2 * kept * kMib, 0, 0};
      if (s == 6) stage.options[0].allowed = false;
      if (s == 6) stage.options[1] = {true, kMib, kMib, 50 * kMib, 10, 0};
      if (s >= 0) names.push_back("h." + std::to_string(s));
      problem.stages.push_back(stage);
    }
    const auto facts = planner::memory_facts({{problem, 0}}, names.size());
    REQUIRE(facts.ok());
    CHECK(
        planner::least_peak_text(problem, facts->models[0], names) ==
        "at that peak: 700 MiB of parameters, gradients, optimizer and buffers, 3.0 MiB of "
        "activations outside of blocks, block h.6: 50.0 MiB (recompute, its backward runs), block "
        "h.5: 6.0 MiB, block h.4: 5.0 MiB, block h.3: 4.0 MiB and 3 more blocks: 6.0 MiB");
    CHECK(facts->models[0].front.front().peak_bytes == (700 + 3 + 50 + 21) * kMib);
  }

  TEST_CASE("a profile to keep names the stages and the ranks it holds for") {
    const auto profile = planner::profile_of(
        {{problem_of(500, 10), 4000}, {problem_of(900, 10), 8000}, {problem_of(500, 30), 3000}},
        {"h.0", "h.1"});
    REQUIRE(profile.profiles.size() == 2);
    const planner::RankProfile& first = profile.profiles[0];
    CHECK(first.ranks == std::vector<std::int32_t>{0, 2});
    CHECK(first.limit_bytes == 3000);
    CHECK(first.stage_names ==
          std::vector<std::string>{"before the blocks", "h.0", "h.1", "after the blocks"});
    CHECK(first.problem.stages[1].forward_us == 30);
    const auto read = io::read_memory_profile(io::to_json(profile));
    REQUIRE_MESSAGE(read.ok(), read.status().text());
    CHECK(*read == profile);
  }

  TEST_CASE("a rank where nothing was measured is taken to be like the first kind") {
    auto facts = planner::memory_facts({{{}, 100}, {problem_of(500, 10), 4000}}, 2);
    REQUIRE(facts.ok());
    CHECK(facts->model_of_rank == std::vector<std::uint32_t>{0, 0});
  }

  TEST_CASE("without any measurement there is nothing to plan, and that is said") {
    auto facts = planner::memory_facts({{{}, 100}, {{}, 100}}, 2);
    REQUIRE_FALSE(facts.ok());
    CHECK(facts.status().message().find("found 0") != std::string::npos);
  }
}
