// Steps as runs: what changes run by run is what a referee counts, and improving keeps the room.
#include "coordinator/planner/step_runs.h"

#include <algorithm>
#include <random>

#include "coordinator/planner/step_improve.h"
#include "tests/planner/random_step.h"
#include "tests/planner/step_referee.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using planner::Run;
using planner::StepGraph;
using planner::StepRuns;
using test::drawn;

void check_runs(const StepGraph& graph, const StepRuns& steps) {
  const test::RefereedStep step = test::execute(graph, steps.schedule());
  CHECK(step.error.empty());
  CHECK(step.peak_bytes == steps.peak_bytes() + graph.base_bytes);
  CHECK(step.ns == steps.added_ns() + planner::step_ns(graph));
  std::int64_t excess = 0;
  for (const std::int64_t bytes : steps.bytes())
    excess += std::max<std::int64_t>(0, bytes - steps.room_bytes());
  CHECK(excess == steps.excess());
}

// Adds a run that is not there, or takes away one that need not be.
void change(StepRuns& steps, std::mt19937_64& random) {
  const auto op = static_cast<std::int32_t>(drawn(random, 0, steps.operators() - 2));
  const Run run{static_cast<std::int32_t>(drawn(random, op + 1, steps.operators() - 1)), op};
  if (steps.has(run))
    steps.erase(run);
  else
    steps.insert(run);
}

TEST_SUITE("planner.step_runs") {
  TEST_CASE("any runs can be executed, and the referee counts the same time and peak") {
    std::mt19937_64 random(11);
    for (int i = 0; i < 40; ++i) {
      CAPTURE(i);
      const StepGraph graph =
          test::random_step(random, static_cast<std::int32_t>(drawn(random, 2, 20)));
      StepRuns steps(graph);
      steps.assign(steps.runs(), planner::keep_all(graph).peak_bytes / 2);
      CHECK(steps.peak_bytes() + graph.base_bytes == planner::keep_all(graph).peak_bytes);
      for (int k = 0; k < 40; ++k) {
        change(steps, random);
        check_runs(graph, steps);
      }
      StepRuns anew(graph);
      anew.assign(steps.runs(), steps.room_bytes());
      CHECK(anew.bytes() == steps.bytes());
      CHECK(anew.excess() == steps.excess());
      CHECK(planner::runs_of(steps.schedule()) == steps.runs());
    }
  }

  TEST_CASE("a run added and taken away leaves everything as it was") {
    std::mt19937_64 random(12);
    const StepGraph graph = test::random_step(random, 15);
    StepRuns steps(graph);
    for (int i = 0; i < 20; ++i) change(steps, random);
    for (int i = 0; i < 200; ++i) {
      const auto runs = steps.runs();
      const auto bytes = steps.bytes();
      const auto excess = steps.excess();
      const auto same = random;
      change(steps, random);
      random = same;
      change(steps, random);
      CHECK(steps.runs() == runs);
      CHECK(steps.bytes() == bytes);
      CHECK(steps.excess() == excess);
      random.discard(static_cast<unsigned long long>(i % 3 + 1));
    }
  }

  TEST_CASE("what is improved fits the room and is never slower than what it starts from") {
    std::mt19937_64 random(13);
    int faster = 0;
    for (int i = 0; i < 40; ++i) {
      CAPTURE(i);
      const StepGraph graph =
          test::random_step(random, static_cast<std::int32_t>(drawn(random, 4, 20)));
      StepRuns steps(graph);
      for (int k = 0; k < 30; ++k) change(steps, random);
      const auto start = steps.runs();
      const std::int64_t room = steps.peak_bytes();
      const std::int64_t before = steps.added_ns();
      planner::Draws draws;
      steps.assign(start, room);
      const auto found = planner::improve(steps, planner::step_ns(graph), 50'000, draws);
      REQUIRE(found.has_value());
      CHECK(found->added_ns <= before);
      faster += found->added_ns < before ? 1 : 0;
      steps.assign(found->runs, room);
      CHECK(steps.excess() == 0);
      CHECK(steps.added_ns() == found->added_ns);
      check_runs(graph, steps);
      planner::Draws same;
      steps.assign(start, room);
      CHECK(planner::improve(steps, planner::step_ns(graph), 50'000, same)->runs == found->runs);
    }
    CHECK(faster > 20);
  }

  TEST_CASE("a schedule in which an operator runs twice in a turn is no set of runs") {
    using enum planner::StepAction::Kind;
    CHECK_FALSE(planner::runs_of({{run, 0}, {free, 0}, {run, 0}, {free, 0}, {run, 0}, {run, 1}}));
    CHECK(planner::runs_of({{run, 0}, {free, 0}, {run, 0}, {run, 1}})->size() == 3);
  }
}

}  // namespace
}  // namespace cox
