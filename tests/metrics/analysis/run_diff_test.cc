#include "metrics/analysis/findings/run_diff.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

// The parts of a run. Equal parts give equal runs.
struct Parts {
  std::vector<std::int32_t> ranks = {0, 1, 2, 3};
  std::int32_t world_size = 4;
  std::int64_t first_step = 0;
  std::int64_t steps = 120;
  double seconds = 0.1;                        // in a step
  std::function<double(std::int64_t)> wobble;  // multiplies the seconds
  std::function<double(std::int32_t, std::int64_t)> loss = [](std::int32_t rank,
                                                              std::int64_t step) {
    return 4 - 0.01 * static_cast<double>(step) + 0.1 * rank;
  };
  std::function<double(std::int32_t)> peak = [](std::int32_t) { return 1e9; };
  std::function<double(std::int64_t)> plan = [](std::int64_t) { return 1.0; };
  std::vector<RunSetting> config = {{"lr", "0.1"}, {"memory.budget", "\"1GiB\""}};
  std::vector<RunSetting> environment = {{"torch", "\"2.11.0\""}};
  PlanHistory plans;
};

RankRecord rank_of(const Parts& parts, std::int32_t rank) {
  RankRecord out;
  out.rank = rank;
  out.info.rank = rank;
  out.info.world_size = parts.world_size;
  out.info.config = parts.config;
  out.info.environment = parts.environment;
  for (std::int64_t s = parts.first_step; s < parts.first_step + parts.steps; ++s) {
    out.steps.push(static_cast<double>(s));
    out.phases["compute"].push(parts.seconds * (parts.wobble ? parts.wobble(s) : 1));
    out.scalars["loss"].push(parts.loss(rank, s));
    out.memory["alloc"].push(parts.peak(rank));
    out.own["plan"].push(parts.plan(s));
  }
  return out;
}

RunRecord run_of(const Parts& parts) {
  RunRecord out;
  for (const std::int32_t rank : parts.ranks) out.ranks.push_back(rank_of(parts, rank));
  out.plans = parts.plans;
  return out;
}

RunDiff diff(const Parts& a, const Parts& b) {
  return diff_of(run_of(a), run_of(b), {});
}

bool says(const std::vector<std::string>& texts, const std::string& part) {
  return std::ranges::any_of(
      texts, [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

std::function<double(std::int32_t, std::int64_t)> loss_that_parts(std::int32_t rank,
                                                                  std::int64_t step) {
  return [=, usual = Parts().loss](std::int32_t r, std::int64_t s) {
    return usual(r, s) + (r == rank && s >= step ? 1e-7 : 0);
  };
}

PlanEvent event(std::uint64_t step, std::string change, std::string reason) {
  return {1, 2, 3, step, {std::move(change)}, {std::move(reason)}};
}

TEST_SUITE("analysis.run_diff") {
  TEST_CASE("runs that are made alike are equal, and nothing has to be explained") {
    const RunDiff found = diff({}, {});
    CHECK(found.differences.empty());
    CHECK(found.explanation.empty());
    REQUIRE(found.time);
    CHECK(found.time->ratio == 1);
  }

  TEST_CASE("other ranks and other steps are a difference, however alike the rest is") {
    struct Case {
      const char* name;
      void (*change)(Parts&);
      const char* says;
    };
    const std::vector<Case> cases = {
        {"a rank without a record",
         [](Parts& b) {
           b.ranks = {0, 1, 2};
         },
         "only A has a record of rank 3"},
        {"two ranks more",
         [](Parts& b) {
           b.ranks = {0, 1, 2, 3, 4, 5};
           b.world_size = 6;
         },
         "only B has a record of ranks 4-5"},
        {"another job size", [](Parts& b) { b.world_size = 2; }, "A ran on 4 ranks, B on 2"},
        {"no step in common", [](Parts& b) { b.first_step = 1000; },
         "A has 120 steps (0 to 119), B 120 steps (1000 to 1119) of rank 0: none is in both"},
        {"fewer steps", [](Parts& b) { b.steps = 100; },
         "A has 120 steps (0 to 119), B 100 steps (0 to 99) of rank 0"},
        {"no loss", [](Parts& b) { b.loss = [](std::int32_t, std::int64_t) { return absent(); }; },
         "only A has losses of rank 0"},
    };
    for (const Case& each : cases) {
      CAPTURE(each.name);
      Parts b;
      each.change(b);
      const RunDiff found = diff({}, b);
      CHECK_MESSAGE(says(found.differences, each.says), found.differences.size());
      CHECK_FALSE(found.explanation.empty());
    }
  }

  TEST_CASE("ranks are compared by their numbers, and the first that differs is named") {
    Parts a;
    a.ranks = {1, 2, 3};  // the record of rank 0 is lost
    Parts b;
    b.loss = loss_that_parts(2, 40);
    const RunDiff found = diff(a, b);
    REQUIRE(found.loss);
    CHECK(found.loss->step == 40);
    CHECK(found.loss->rank == 2);
    CHECK(says(found.differences, "losses differ from step 40 on (rank 2 first; in 1 of 3 ranks)"));
    CHECK(says(found.differences, "only B has a record of rank 0"));
  }

  TEST_CASE("a loss that is not finite in one run differs, and in both does not") {
    const auto broken = [](std::int32_t rank, std::int64_t step) {
      return step < 60 ? Parts().loss(rank, step) : std::numeric_limits<double>::quiet_NaN();
    };
    Parts b;
    b.loss = broken;
    const RunDiff found = diff({}, b);
    REQUIRE(found.loss);
    CHECK(found.loss->step == 60);
    CHECK(diff(b, b).differences.empty());
  }

  TEST_CASE("a peak is compared on every rank, and the rank that differs most is named") {
    Parts b;
    b.peak = [](std::int32_t rank) { return rank == 3 ? 1.4e9 : rank == 1 ? 1.1e9 : 1e9; };
    CHECK(says(diff({}, b).differences, "peaks of memory differ by +40.0 % (rank 3)"));
  }

  TEST_CASE("a slower run is told from a noisy one") {
    const auto noise = [](std::int64_t step) { return step % 7 == 0 ? 2.5 : 0.75; };
    Parts noisy;
    noisy.wobble = noise;
    Parts other = noisy;
    other.wobble = [=](std::int64_t step) {
      return noise(step + 3) * (step % 2 == 0 ? 1.1 : 0.95);
    };
    const RunDiff same = diff(noisy, other);
    REQUIRE(same.time);
    CHECK(same.time->low < same.time->ratio);
    CHECK(same.time->ratio < same.time->high);
    CHECK_FALSE(says(same.differences, "step times differ"));
    Parts slower = noisy;
    slower.seconds = 0.15;
    CHECK(says(diff(noisy, slower).differences, "step times differ by +50.0 %"));
  }

  TEST_CASE("a job is as slow as its slowest rank, whichever that is") {
    RunRecord b = run_of({});
    Parts slow;
    slow.seconds = 0.2;
    b.ranks[2] = rank_of(slow, 2);
    const RunDiff found = diff_of(run_of({}), b, {});
    CHECK(says(found.differences, "step times differ by +100.0 %"));
  }

  TEST_CASE("the explanation goes from settings over ranks and plans to what no record has") {
    Parts b;
    b.loss = loss_that_parts(0, 50);
    CHECK(says(diff({}, b).explanation, "nondeterminism"));
    Parts from_start = b;
    from_start.loss = loss_that_parts(0, 0);
    CHECK(says(diff({}, from_start).explanation, "seeds"));
    b.plan = [](std::int64_t step) { return step < 30 ? 1.0 : 2.0; };
    b.environment = {{"torch", "\"2.10.0\""}};
    b.config[0].json = "0.2";
    b.world_size = 8;
    const std::vector<std::string> texts = diff({}, b).explanation;
    REQUIRE(texts.size() == 4);
    CHECK(texts[0] == "The configuration differs: lr.");
    CHECK(texts[1] == "The environment differs: torch.");
    CHECK(texts[2].starts_with("The ranks differ"));
    CHECK(texts[3].starts_with("Plans differ from step 30 on"));
  }

  TEST_CASE("a plan that came after the losses parted explains nothing") {
    Parts b;
    b.loss = loss_that_parts(0, 20);
    b.plan = [](std::int64_t step) { return step < 30 ? 1.0 : 2.0; };
    const RunDiff found = diff({}, b);
    CHECK(found.plans_differ_at == 30);
    CHECK_FALSE(says(found.explanation, "Plans differ"));
    CHECK(says(found.explanation, "nondeterminism"));
  }

  TEST_CASE("settings by which no loss may change are no explanation of other losses") {
    Parts b;
    b.loss = loss_that_parts(0, 20);
    b.config[1].json = "\"2GiB\"";
    const std::vector<std::string> texts = diff({}, b).explanation;
    REQUIRE(texts.size() == 2);
    CHECK(texts[0].find("nondeterminism") != std::string::npos);
    CHECK(texts[1] == "Settings that must not change a loss differ too: memory.budget.");
    Parts slower;
    slower.seconds = 0.2;
    slower.config = b.config;
    CHECK(diff({}, slower).explanation ==
          std::vector<std::string>{"The configuration differs: memory.budget."});
  }

  TEST_CASE("the first decision that the other job did not make is shown with its reason") {
    Parts a;
    a.plans.events = {event(10, "block 1 recomputes", "memory: over budget"),
                      event(30, "block 2 recomputes", "memory: still over budget")};
    Parts b = a;
    CHECK_FALSE(diff(a, b).plans);
    b.plans.events[1].step = 37;  // the same, later
    CHECK_FALSE(diff(a, b).plans);
    b.plans.events[1].changes = {"block 2 in bf16"};
    b.plan = [](std::int64_t step) { return step < 31 ? 1.0 : 3.0; };
    b.seconds = 0.2;
    const RunDiff found = diff(a, b);
    REQUIRE(found.plans);
    REQUIRE(found.plans->a);
    REQUIRE(found.plans->b);
    CHECK(found.plans->a->changes == std::vector<std::string>{"block 2 recomputes"});
    CHECK(found.plans->b->step == 37);
    CHECK(
        says(found.explanation,
             "Plans differ from step 31 on: A after step 30: block 2 recomputes; B after step 37: "
             "block 2 in bf16."));
    CHECK(found.plans->a->reasons == std::vector<std::string>{"memory: still over budget"});
    b.plans.events.pop_back();
    REQUIRE(diff(a, b).plans);
    CHECK_FALSE(diff(a, b).plans->b);
  }

  TEST_CASE("a journal that is missing or ends early is not taken for a job that decided no more") {
    Parts a;
    a.plans.events = {event(0, "no change", "start"), event(10, "block 1 recomputes", "memory")};
    CHECK_FALSE(diff(a, {}).plans);
    CHECK_FALSE(diff({}, a).plans);
    Parts torn = a;
    torn.plans.events.pop_back();
    torn.plans.gap = "torn";
    CHECK_FALSE(diff(a, torn).plans);
    torn.plans.events[0].changes = {"another"};
    CHECK(diff(a, torn).plans);
  }

  TEST_CASE("the layout of nodes may change sums, so it explains other losses") {
    Parts a;
    a.config = {{"control.ranks_per_node", "0"}};
    Parts b;
    b.config = {{"control.ranks_per_node", "2"}};
    b.loss = loss_that_parts(0, 20);
    CHECK(diff(a, b).explanation ==
          std::vector<std::string>{"The configuration differs: control.ranks_per_node."});
  }

  TEST_CASE("of histories with a gap in the middle only the beginnings are laid side by side") {
    Parts a;
    for (std::uint64_t i = 0; i < PlanHistory::kMost; ++i)
      a.plans.events.push_back(event(i, "change " + std::to_string(i), ""));
    Parts b = a;
    b.plans.left_out = 3;
    for (std::size_t i = PlanHistory::kFirst; i < PlanHistory::kMost; ++i)
      b.plans.events[i].changes = {"change " + std::to_string(i + 3)};
    CHECK_FALSE(diff(a, b).plans);
    b.plans.events[PlanHistory::kFirst - 1].changes = {"another"};
    CHECK(diff(a, b).plans);
  }
}

}  // namespace
}  // namespace cox::diagnosis
