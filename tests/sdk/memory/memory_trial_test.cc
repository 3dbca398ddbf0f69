#include "sdk/src/memory/memory_trial.h"

#include <random>

#include "coordinator/planner/memory_problem.h"
#include "synthetic_step.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::Actions;
using cox::detail::BlockEdge;
using test::SyntheticBlock;
using test::SyntheticStep;

namespace {

using Random = std::mt19937_64;

std::int64_t draw(Random& random, std::int64_t most) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

SyntheticStep random_step(Random& random) {
  std::vector<SyntheticBlock> blocks(1 + random() % 12);
  for (SyntheticBlock& block : blocks) {
    block = {1 + draw(random, 1000), draw(random, 100), draw(random, 300), draw(random, 50)};
  }
  return {draw(random, 5000), std::move(blocks), draw(random, 2000)};
}

cox::detail::TrialPass pass_of(SyntheticStep& step, int& passes, std::int64_t& most) {
  return [&](const Actions& actions) {
    ++passes;
    auto reading = cox::detail::read_stages(step.trace(actions), step.blocks());
    most = std::max(most, step.true_peak());
    return reading;
  };
}

std::int64_t predicted_peak(const MemoryProblem& problem, const Actions& actions) {
  Actions per_stage = actions;  // stages around the blocks are always kept
  per_stage.insert(per_stage.begin(), MemoryAction::keep);
  per_stage.push_back(MemoryAction::keep);
  return planner::schedule(problem, per_stage).peak_bytes;
}

constexpr ActionSet kKeepOrRecompute = only(MemoryAction::keep) | only(MemoryAction::recompute);

}  // namespace

TEST_SUITE("memory trial") {
  TEST_CASE("the peak of any mix of actions follows from a few passes, to the byte") {
    Random random(7);
    for (int i = 0; i < 300; ++i) {
      SyntheticStep step = random_step(random);
      int passes = 0;
      std::int64_t most = 0;
      const auto problem = cox::detail::measure_problem(
          step.blocks(), {.actions = kKeepOrRecompute}, pass_of(step, passes, most));
      REQUIRE(problem.ok());
      CHECK(passes == 3);
      for (int plan = 0; plan < 20; ++plan) {
        Actions actions(step.blocks());
        for (auto& action : actions) action = static_cast<MemoryAction>(random() % 2);
        step.trace(actions);
        CHECK(predicted_peak(*problem, actions) == step.true_peak());
      }
    }
  }

  TEST_CASE("under a budget the trial itself stays within what one kept block takes") {
    Random random(8);
    for (int i = 0; i < 200; ++i) {
      SyntheticStep step = random_step(random);
      step.trace(Actions(step.blocks(), MemoryAction::recompute));
      const std::int64_t least = step.true_peak();
      const std::int64_t budget = least + 1500;
      int passes = 0;
      std::int64_t most = 0;
      const auto problem = cox::detail::measure_problem(
          step.blocks(), {.actions = kKeepOrRecompute, .budget_bytes = budget},
          pass_of(step, passes, most));
      REQUIRE(problem.ok());
      CHECK(most <= budget);
    }
  }

  TEST_CASE("a block whose recompute frees nothing is not offered to be recomputed") {
    SyntheticStep step(1000, {{0, 10, 5, 0}, {400, 10, 5, 0}}, 0);
    int passes = 0;
    std::int64_t most = 0;
    const auto problem =
        cox::detail::measure_problem(2, {.actions = kKeepOrRecompute}, pass_of(step, passes, most));
    REQUIRE(problem.ok());
    CHECK_FALSE(problem->stages[1].option(MemoryAction::recompute).allowed);
    CHECK(problem->stages[2].option(MemoryAction::recompute).allowed);
  }

  TEST_CASE("blocks run in an order of their own, and some not at all") {
    cox::detail::StepTrace trace;
    for (const BlockId::rep block : {2, 0}) {
      trace.events.push_back({BlockId(block), BlockEdge::forward_begin});
      trace.events.push_back({BlockId(block), BlockEdge::forward_end});
    }
    for (const BlockId::rep block : {0, 2})
      trace.events.push_back({BlockId(block), BlockEdge::backward_begin});
    const auto read = cox::detail::read_stages(trace, 3);
    REQUIRE(read.ok());
    CHECK(read->order == std::vector<std::size_t>{2, 0});
    CHECK(read->stages.size() == 4);
  }

  TEST_CASE("steps that are no chain of blocks are refused with what was found") {
    const auto refused = [](std::vector<cox::detail::TraceEvent> events, std::size_t blocks) {
      cox::detail::StepTrace trace;
      trace.events = std::move(events);
      const auto read = cox::detail::read_stages(trace, blocks);
      REQUIRE_FALSE(read.ok());
      CHECK(read.status().code() == StatusCode::failed_precondition);
      return read.status().message();
    };
    const BlockId first{0}, second{1};
    CHECK(refused({}, 0).find("found no blocks") != std::string::npos);
    CHECK(refused({}, 1).find("no block that ran") != std::string::npos);
    CHECK(refused({{first, BlockEdge::forward_begin},
                   {first, BlockEdge::forward_end},
                   {first, BlockEdge::backward_begin},
                   {first, BlockEdge::backward_end},
                   {first, BlockEdge::backward_begin}},
                  1)
              .find("a backward pass that returns to block 0") != std::string::npos);
    CHECK(refused({{second, BlockEdge::forward_begin},
                   {second, BlockEdge::forward_end},
                   {first, BlockEdge::forward_begin},
                   {first, BlockEdge::forward_end},
                   {second, BlockEdge::backward_begin},
                   {first, BlockEdge::backward_begin}},
                  2)
              .find("backward pass of block 1 out of order") != std::string::npos);
    CHECK(refused({{first, BlockEdge::forward_begin}, {first, BlockEdge::forward_end}}, 1)
              .find("no block that ran forward and backward") != std::string::npos);
  }

  TEST_CASE("what a block holds that backward asks for nothing belongs to the block before it") {
    cox::detail::StepTrace trace;
    const auto note = [&](BlockId::rep block, BlockEdge edge, std::int64_t live) {
      trace.events.push_back({BlockId(block), edge, {}, live, live});
    };
    for (const BlockId::rep block : {0, 1, 2}) {
      note(block, BlockEdge::forward_begin, 100 * block);
      note(block, BlockEdge::forward_end, 100 * block + 100);
    }
    note(2, BlockEdge::backward_begin, 300);
    note(0, BlockEdge::backward_begin, 200);
    const auto read = cox::detail::read_stages(trace, 3);
    REQUIRE(read.ok());
    CHECK(read->order == std::vector<std::size_t>{0, 2});
    CHECK(read->stages[1].kept_bytes == 200);
    CHECK(read->stages[2].kept_bytes == 100);
  }

  TEST_CASE("the visits of a block that comes again are one stage, which holds them all") {
    cox::detail::StepTrace trace;
    const auto note = [&](BlockId::rep block, BlockEdge edge, std::int64_t live) {
      trace.events.push_back({BlockId(block), edge, {}, live, live});
    };
    std::int64_t live = 0;
    for (const BlockId::rep block : {0, 1, 0, 1}) {
      note(block, BlockEdge::forward_begin, live);
      live += block == 0 ? 100 : 30;
      note(block, BlockEdge::forward_end, live);
    }
    for (const BlockId::rep block : {1, 0, 1, 0}) {
      note(block, BlockEdge::backward_begin, live + 5);
      live -= block == 0 ? 100 : 30;
      note(block, BlockEdge::backward_end, live);
    }
    const auto read = cox::detail::read_stages(trace, 2);
    REQUIRE(read.ok());
    CHECK(read->order == std::vector<std::size_t>{0, 1});
    CHECK(read->has_repeats);
    CHECK(read->stages[1].kept_bytes == 200);
    CHECK(read->stages[2].kept_bytes == 60);
    CHECK(read->stages[1].backward_high_bytes == 205);
    CHECK(read->stages[2].backward_high_bytes == 65);
  }

  TEST_CASE("a visit that backward does not use is no visit of its block's stage") {
    cox::detail::StepTrace trace;
    const auto note = [&](BlockEdge edge, std::int64_t live) {
      trace.events.push_back({BlockId(0), edge, {}, live, live});
    };
    note(BlockEdge::forward_begin, 0);  // an evaluation
    note(BlockEdge::forward_end, 70);
    note(BlockEdge::forward_begin, 10);
    note(BlockEdge::forward_end, 110);
    note(BlockEdge::backward_begin, 110);
    const auto read = cox::detail::read_stages(trace, 1);
    REQUIRE(read.ok());
    CHECK_FALSE(read->has_repeats);
    CHECK(read->stages[0].kept_bytes == 10);
    CHECK(read->stages[1].kept_bytes == 100);
  }

  TEST_CASE("what another step of the loop takes beyond a plan is counted with all plans") {
    SyntheticStep step(1000, {{500, 10, 5, 0}, {400, 10, 5, 0}}, 0);
    int passes = 0;
    std::int64_t most = 0;
    std::int64_t tried = 0;
    const auto other_peak = [&](const Actions& actions) -> Result<std::int64_t> {
      ++tried;
      step.trace(actions);
      return step.true_peak() + 70;
    };
    const auto problem = cox::detail::measure_problem(
        2, {.actions = kKeepOrRecompute, .other_peak = other_peak}, pass_of(step, passes, most));
    REQUIRE(problem.ok());
    CHECK(tried > 1);
    const Actions kept(2, MemoryAction::keep);
    step.trace(kept);
    CHECK(predicted_peak(*problem, kept) == step.true_peak() + 70);
  }
}
