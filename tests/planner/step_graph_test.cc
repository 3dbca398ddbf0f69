// Plans of whole steps: a referee executes each, and small graphs are compared with all decisions.
#include "coordinator/planner/step_graph.h"

#include <algorithm>
#include <limits>
#include <random>

#include "coordinator/planner/step_trial.h"
#include "tests/planner/random_step.h"
#include "tests/planner/step_referee.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using planner::StepGraph;
using planner::StepPlan;
using test::drawn;
using test::random_step;

void check_plan(const StepGraph& graph, const StepPlan& plan) {
  const test::RefereedStep step = test::execute(graph, plan.schedule);
  CHECK(step.error.empty());
  CHECK(step.peak_bytes == plan.peak_bytes);
  CHECK(step.ns == plan.added_ns + planner::step_ns(graph));
}

std::vector<std::int64_t> budgets_of(const StepGraph& graph, std::int64_t count) {
  const std::int64_t high = planner::keep_all(graph).peak_bytes;
  std::vector<std::int64_t> budgets;
  for (std::int64_t b = 0; b < count; ++b)
    budgets.push_back(graph.base_bytes + (high - graph.base_bytes) * (b + 1) / count);
  return budgets;
}

TEST_SUITE("planner.steps") {
  TEST_CASE("plans are what a referee executes, and more bytes never cost time") {
    std::mt19937_64 random(5);
    for (int i = 0; i < 60; ++i) {
      CAPTURE(i);
      const StepGraph graph = random_step(random, static_cast<std::int32_t>(drawn(random, 2, 25)));
      REQUIRE(planner::validate(graph).ok());
      check_plan(graph, planner::keep_all(graph));
      const auto budgets = budgets_of(graph, 8);
      const auto plans = planner::plan_step(graph, budgets, {200'000});
      REQUIRE(plans.size() == budgets.size());
      for (std::size_t b = 0; b < plans.size(); ++b) {
        check_plan(graph, plans[b]);
        const bool fits = plans[b].peak_bytes <= budgets[b];
        if (b > 0 && fits)
          CHECK(plans[b].added_ns <=
                plans[b - 1].added_ns * (plans[b - 1].peak_bytes <= budgets[b - 1] ? 1 : 1000));
        if (b + 1 == plans.size()) CHECK(plans[b].added_ns == 0);
      }
    }
  }

  TEST_CASE("of small steps no decision about what stays makes a faster plan") {
    std::mt19937_64 random(6);
    int missed = 0;
    int asked = 0;
    for (int i = 0; i < 40; ++i) {
      CAPTURE(i);
      const StepGraph graph = random_step(random, static_cast<std::int32_t>(drawn(random, 2, 4)));
      planner::StepTrial trial(graph);
      const std::size_t n = trial.gaps().size();
      if (n > 10) continue;
      const auto budgets = budgets_of(graph, 6);
      std::vector<std::int64_t> best(budgets.size(), std::numeric_limits<std::int64_t>::max());
      std::vector<planner::Stay> stays(n, planner::Stay::keep);
      for (std::size_t code = 0, all = 1; code < all; ++code) {
        all = 1;
        for (std::size_t g = 0; g < n; ++g, all *= 3)
          stays[g] = static_cast<planner::Stay>(code / all % 3);
        const auto price = trial.price(stays, 0);
        for (std::size_t b = 0; b < budgets.size(); ++b) {
          if (price.peak_bytes + graph.base_bytes <= budgets[b])
            best[b] = std::min(best[b], price.ns - planner::step_ns(graph));
        }
      }
      const auto plans = planner::plan_step(graph, budgets, {200'000});
      for (std::size_t b = 0; b < plans.size(); ++b) {
        const bool fits = plans[b].peak_bytes <= budgets[b];
        if (best[b] != std::numeric_limits<std::int64_t>::max()) CHECK(fits);
        if (!fits) continue;
        missed += plans[b].added_ns > best[b] ? 1 : 0;
        ++asked;
      }
    }
    CHECK(asked > 50);
    CHECK(missed == 0);
  }

  TEST_CASE("dynamic tensor rematerialization keeps its budget and its reads") {
    std::mt19937_64 random(7);
    int fitted = 0;
    for (int i = 0; i < 60; ++i) {
      CAPTURE(i);
      const StepGraph graph = random_step(random, static_cast<std::int32_t>(drawn(random, 2, 25)));
      for (const std::int64_t budget : budgets_of(graph, 6)) {
        const auto schedule = test::dtr(graph, budget);
        if (!schedule) continue;
        ++fitted;
        const auto step = test::execute(graph, *schedule);
        CHECK(step.error.empty());
        CHECK(step.peak_bytes <= budget);
        if (budget == planner::keep_all(graph).peak_bytes)
          CHECK(step.ns == planner::step_ns(graph));
      }
    }
    CHECK(fitted > 100);
  }

  TEST_CASE("DTR evicts by cost of the evicted neighbourhood over bytes and staleness") {
    // a and b are as large and a is staler, but making it again costs much more.
    StepGraph graph;
    graph.tensors = {{10, false}, {10, false}, {10, false}, {1, true}};
    graph.operators = {{"a", 1000, {}, {0}},
                       {"b", 10, {}, {1}},
                       {"c", 10, {}, {2}},
                       {"all", 1, {2}, {3}},
                       {"end", 1, {0, 1}, {}}};
    const auto schedule = test::dtr(graph, 25);
    REQUIRE(schedule.has_value());
    using enum planner::StepAction::Kind;
    CHECK(std::ranges::find(*schedule, planner::StepAction{free, 1}) != schedule->end());
    CHECK(test::execute(graph, *schedule).ns == planner::step_ns(graph) + 10);
  }

  TEST_CASE("a referee finds what is wrong with a schedule") {
    StepGraph graph;
    graph.tensors = {{10, false}, {5, true}};
    graph.operators = {{"a", 1, {}, {0}}, {"b", 2, {0}, {1}}};
    using enum planner::StepAction::Kind;
    CHECK(test::execute(graph, {{run, 0}, {run, 1}}).error.empty());
    CHECK(test::execute(graph, {{run, 0}, {run, 1}}).peak_bytes == 15);
    CHECK_FALSE(test::execute(graph, {{run, 0}}).error.empty());
    CHECK_FALSE(test::execute(graph, {{run, 0}, {free, 0}, {run, 1}}).error.empty());
    CHECK_FALSE(test::execute(graph, {{run, 0}, {run, 1}, {free, 1}}).error.empty());
    CHECK_FALSE(test::execute(graph, {{free, 0}, {run, 0}, {run, 1}}).error.empty());
  }

  TEST_CASE("a tensor that is made again for another one is taken along") {
    // Both ends read what follows from the root; the root's result is in nobody's way in between.
    StepGraph graph;
    graph.tensors = {{10, false}, {10, false}, {30, false}, {1, false}, {1, true}};
    graph.operators = {{"root", 50, {}, {0}},  {"next", 5, {0}, {1}},  {"large", 1, {}, {2}},
                       {"after", 1, {2}, {3}}, {"end", 1, {3, 1}, {}}, {"last", 1, {0, 3}, {4}}};
    const auto plans = planner::plan_step(graph, {31, 41, 51});
    CHECK(plans[0].added_ns == 55);  // the root once, for both
    CHECK(plans[1].added_ns == 5);
    CHECK(plans[2].added_ns == 0);
    for (const auto& plan : plans) check_plan(graph, plan);
  }

  TEST_CASE("a tensor is made again early where what it is made from would have to stay") {
    // The large root is dropped at its last use; its small copy is wanted much later.
    StepGraph graph;
    graph.tensors = {{30, false}, {20, false}, {40, false}, {1, false},
                     {40, false}, {1, false},  {1, true}};
    graph.operators = {{"root", 50, {}, {0}},     {"copy", 5, {0}, {1}},
                       {"early", 1, {1}, {3}},    {"large", 1, {3}, {2}},
                       {"after", 1, {2, 0}, {5}}, {"large again", 1, {5}, {4}},
                       {"end", 1, {4, 1}, {6}}};
    const auto plan = planner::plan_step(graph, {83}).front();
    check_plan(graph, plan);
    CHECK(plan.peak_bytes <= 83);
    CHECK(plan.added_ns == 5);
  }

  TEST_CASE("some thousand operators are planned within the limit of work") {
    std::mt19937_64 random(8);
    const StepGraph graph = random_step(random, 1500);
    const auto budgets = budgets_of(graph, 4);
    const auto plans = planner::plan_step(graph, {budgets[1], budgets[2]}, {4'000'000});
    for (const auto& plan : plans) check_plan(graph, plan);
    CHECK(plans[0].peak_bytes <= budgets[1]);
  }

  TEST_CASE("graphs that cannot be are refused") {
    std::mt19937_64 random(9);
    const StepGraph good = random_step(random, 5);
    const auto refuses = [&](const auto& change, const std::string& words) {
      StepGraph graph = good;
      change(graph);
      const Status status = planner::validate(graph);
      CHECK_FALSE(status.ok());
      CHECK(status.message().find(words) != std::string::npos);
    };
    refuses([](StepGraph& g) { g.operators.clear(); }, "1 to 65536 operators");
    refuses([](StepGraph& g) { g.tensors[2].bytes = -1; }, "tensor 2");
    refuses([](StepGraph& g) { g.base_bytes = -1; }, "base_bytes");
    refuses([](StepGraph& g) { g.operators[1].ns = planner::kMaxStepNumber + 1; }, "ns in range");
    refuses([](StepGraph& g) { g.operators[1].reads = {1}; }, "to read tensors");
    refuses([](StepGraph& g) { g.operators[1].makes = {0}; }, "nobody made before");
    refuses([](StepGraph& g) { g.tensors.push_back({1, false}); }, "found none");
  }
}

}  // namespace
}  // namespace cox
