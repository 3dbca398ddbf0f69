#include "metrics/topics/memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "metrics/catalogue.h"
#include "metrics/plan_counts.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "tests/metrics/simulated_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

constexpr auto kKeep = MemoryAction::keep;
constexpr auto kRecompute = MemoryAction::recompute;

// Returns two blocks and three plans. `factor` makes kinds of ranks differ.
MemoryModel model(std::int64_t factor = 1) {
  MemoryModel made;
  made.front = {{100 * factor, 30, {kRecompute, kRecompute}},
                {140 * factor, 10, {kRecompute, kKeep}},
                {200 * factor, 0, {kKeep, kKeep}}};
  made.base_bytes = 50 * factor;
  made.step_us = 100;
  made.kept_bytes = {60 * factor, 40 * factor};
  return made;
}

JobFacts job(std::int32_t ranks, std::vector<MemoryModel> models) {
  JobFacts facts;
  facts.world_size = ranks;
  facts.blocks = {"a", "b"};
  facts.capabilities.actions = 0b11;
  facts.memory.models = std::move(models);
  return facts;
}

StepSignals peaks(const std::vector<std::uint64_t>& bytes) {
  StepSignals signals;
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    RankSignal report;
    report.rank = RankId(static_cast<std::int32_t>(r));
    report.memory_peak_bytes = bytes[r];
    signals.reports.push_back(report);
  }
  return signals;
}

// Returns the exposition's value of a series, as text.
std::string value_of(const std::string& exposition, const std::string& series) {
  const auto at = exposition.find("\n" + series + " ");
  if (at == std::string::npos) return "none";
  const auto from = at + series.size() + 2;
  return exposition.substr(from, exposition.find('\n', from) - from);
}

struct Pages {
  std::string metrics;
  std::string status;
  std::string plan;
  std::string ranks;
};
Pages pages_after(SimulatedSetup setup, int rounds) {
  SimulatedJob simulated(std::move(setup));
  TelemetryState state(simulated.job(), UnixTime{1}, {"0.1.0", "abc"});
  simulated.steps(state, rounds);
  const Served served{state.snapshot(), UnixTime{simulated.now()}, {}};
  const auto body = [&](const char* path) { return respond({"GET", path, ""}, served).body; };
  return {body("/metrics"), body("/api/v1/status"), body("/api/v1/plan"), body("/api/v1/ranks")};
}

}  // namespace

TEST_SUITE("memory view") {
  TEST_CASE("a rank's peaks are those of its share of the batch") {
    MemoryModel measured = model();
    measured.samples = 4;
    JobFacts facts = job(2, {measured});
    facts.global_batch = 8;
    Plan plan;
    plan.profiles = {{kKeep, kKeep}};
    plan.shares = {1, 3};
    const auto view = memory_view(facts, plan, {});
    REQUIRE(view != nullptr);
    CHECK(view->ranks[0].predicted_peak_bytes == 50 + 150 * 2 / 4);
    CHECK(view->ranks[1].predicted_peak_bytes == 50 + 150 * 6 / 4);
    CHECK(view->ranks[1].keep_all_peak_bytes == 50 + 150 * 6 / 4);
    CHECK(view->predicted_peak_bytes == 50 + 150 * 6 / 4);
  }

  TEST_CASE("there is none where nothing was measured or the plan has no profiles yet") {
    const JobFacts facts = job(2, {model()});
    CHECK(memory_view(job(2, {}), initial_plan(facts), {}) == nullptr);
    CHECK(memory_view(facts, Plan{}, {}) == nullptr);
  }

  TEST_CASE("each rank has the cost of its class in the model of its kind") {
    JobFacts facts = job(4, {model(), model(10)});
    facts.memory.model_of_rank = {0, 0, 1, 1};
    Plan plan = initial_plan(facts);
    plan.profiles = {{kKeep, kKeep}, {kRecompute, kKeep}};
    plan.rank_profile = {ProfileId(0), ProfileId(1), ProfileId(0), ProfileId(1)};
    const auto view = memory_view(facts, plan, std::vector<std::int64_t>{500, 400, 0, 3000});
    REQUIRE(view);
    const RankMemoryView expected[] = {
        {200, 200, 500, 0.0}, {140, 200, 400, 0.1}, {2000, 2000, 0, 0.0}, {1400, 2000, 3000, 0.1}};
    for (std::size_t r = 0; r < 4; ++r) {
      CAPTURE(r);
      CHECK((view->ranks[r] == expected[r]));
    }
    CHECK(view->predicted_peak_bytes == 2000);
    CHECK(view->keep_all_peak_bytes == 2000);
    CHECK(view->saved_bytes == 600);
    CHECK(view->budget_bytes == 400);
    CHECK(view->added_ratio == 0.1);
    CHECK(view->resident_bytes == 500);
    CHECK(view->keep_all_block_bytes == 1000);
    CHECK(view->plan_kept_block_bytes == 1000);
  }

  TEST_CASE("what a plan does that no front knows is unknown, and spoils nothing") {
    JobFacts facts = job(2, {model()});
    Plan plan = initial_plan(facts);
    plan.profiles = {{kRecompute, kRecompute}, {kKeep, MemoryAction::offload}};
    plan.rank_profile = {ProfileId(0), ProfileId(1)};
    const auto view = memory_view(facts, plan, {});
    REQUIRE(view);
    CHECK(view->ranks[1].predicted_peak_bytes == 0);
    CHECK(std::isnan(view->ranks[1].added_ratio));
    CHECK(view->predicted_peak_bytes == 100);
    CHECK(view->added_ratio == doctest::Approx(0.3));
    CHECK(view->saved_bytes == 100);
    CHECK(view->budget_bytes == 0);
  }

  TEST_CASE("a step of unknown length gives no ratio, a forced block no plan that keeps all") {
    MemoryModel forced = model();
    forced.step_us = 0;
    forced.front.pop_back();
    const JobFacts facts = job(1, {forced});
    Plan plan = initial_plan(facts);
    plan.profiles = {{kRecompute, kKeep}};
    const auto view = memory_view(facts, plan, {});
    REQUIRE(view);
    CHECK(view->predicted_peak_bytes == 140);
    CHECK(view->keep_all_peak_bytes == 0);
    CHECK(view->saved_bytes == 0);
    CHECK(std::isnan(view->added_ratio));
  }

  TEST_CASE("headroom is that of the rank nearest to its budget, measured") {
    const JobFacts facts = job(4, {model()});
    const auto view =
        memory_view(facts, initial_plan(facts), std::vector<std::int64_t>{250, 0, 250, 180});
    REQUIRE(view);
    const MemoryHeadroom within = memory_headroom(*view, peaks({210, 9000, 230, 0}));
    CHECK(within.tightest == RankId(2));
    CHECK(within.least_bytes == 20);
    CHECK(within.over_budget == 0);
    const MemoryHeadroom over = memory_headroom(*view, peaks({251, 9000, 252, 185}));
    CHECK(over.tightest == RankId(3));
    CHECK(over.least_bytes == -5);
    CHECK(over.over_budget == 3);
    const MemoryHeadroom huge =
        memory_headroom(*view, peaks({std::numeric_limits<std::uint64_t>::max()}));
    CHECK(huge.over_budget == 1);
    CHECK(memory_headroom(*view, peaks({0, 5, 0, 0})).tightest == RankId(-1));
  }

  TEST_CASE(
      "a machine that has less left than the budget says counts, and is no rank over budget") {
    const JobFacts facts = job(2, {model()});
    const auto view = memory_view(facts, initial_plan(facts), std::vector<std::int64_t>{250, 250});
    REQUIRE(view);
    StepSignals signals = peaks({210, 200});
    signals.reports[0].memory_limit_bytes = 1000;
    signals.reports[1].memory_limit_bytes = 205;
    const MemoryHeadroom tight = memory_headroom(*view, signals);
    CHECK(tight.tightest == RankId(1));
    CHECK(tight.least_bytes == 5);
    signals.reports[1].memory_limit_bytes = 190;
    CHECK(memory_headroom(*view, signals).least_bytes == -10);
    CHECK(memory_headroom(*view, signals).over_budget == 0);
  }

  TEST_CASE("new budgets are seen, also those of ranks that had none") {
    const JobFacts facts = job(2, {model()});
    const std::vector<std::int64_t> budgets = {7, 0};
    const auto view = memory_view(facts, initial_plan(facts), budgets);
    REQUIRE(view);
    CHECK(has_budgets(*view, budgets));
    CHECK_FALSE(has_budgets(*view, std::vector<std::int64_t>{7, 8}));
    CHECK_FALSE(has_budgets(*view, {}));
  }

  TEST_CASE("ranks are counted by action, block by block") {
    const JobFacts facts = job(4, {model()});
    Plan plan = initial_plan(facts);
    plan.profiles = {{kKeep, kKeep}, {kRecompute, kKeep}};
    plan.rank_profile = {ProfileId(1), ProfileId(0), ProfileId(1), ProfileId(1)};
    const auto ranks = action_ranks(plan, 4);
    REQUIRE(ranks.size() == 2);
    CHECK((ranks[0] == ActionRanks{1, 3, 0, 0}));
    CHECK((ranks[1] == ActionRanks{4, 0, 0, 0}));
  }
}

TEST_SUITE("memory shown") {
  TEST_CASE("metrics say what is predicted, measured and left, of the worst rank") {
    const std::string text = pages_after({}, 100).metrics;
    CHECK(value_of(text, "coxswain_memory_predicted_peak_bytes") == "6979321856");
    CHECK(value_of(text, "coxswain_memory_keep_all_peak_bytes") == "8053063680");
    CHECK(value_of(text, "coxswain_memory_budget_bytes") == "6979321856");
    CHECK(value_of(text, "coxswain_memory_headroom_bytes") == "486539264");  // 512 - 3 * 16 MiB
    CHECK(value_of(text, "coxswain_memory_tightest_rank") == "3");
    CHECK(value_of(text, "coxswain_memory_over_budget_ranks") == "0");
    CHECK(value_of(text, "coxswain_memory_added_time_ratio") == "0.041");
    CHECK(value_of(text, "coxswain_memory_resident_bytes") == "1073741824");
    CHECK(value_of(text, "coxswain_memory_activation_bytes{blocks=\"all\"}") == "1084227584");
    CHECK(value_of(text, "coxswain_memory_activation_bytes{blocks=\"kept_by_plan\"}") ==
          "10485760");
  }

  TEST_CASE("where memory is not planned the gauges are absent and the documents say null") {
    SimulatedSetup setup;
    setup.plans_memory = false;
    const Pages pages = pages_after(setup, 100);
    for (const char* name : {"predicted_peak_bytes", "keep_all_peak_bytes", "budget_bytes",
                             "headroom_bytes", "added_time_ratio", "resident_bytes"}) {
      CAPTURE(name);
      CHECK_FALSE(contains(pages.metrics, "\ncoxswain_memory_" + std::string(name) + " "));
    }
    CHECK(value_of(pages.metrics, "coxswain_memory_tightest_rank") == "-1");
    CHECK(value_of(pages.metrics, "coxswain_memory_over_budget_ranks") == "0");
    CHECK(contains(pages.status, "\"memory\":null"));
    CHECK(contains(pages.plan, "\"memory\":null"));
    CHECK(contains(pages.ranks, "\"memory_predicted_peak_bytes\":null"));
    CHECK(contains(pages.ranks, "\"memory_added_time_ratio\":null"));
  }

  TEST_CASE("documents name peaks, budgets and added time, of the job and of every rank") {
    SimulatedSetup setup;
    setup.ranks_differ = true;
    const Pages pages = pages_after(setup, 100);
    for (const std::string& page : {pages.status, pages.plan}) {
      CHECK(contains(page, "\"memory\":{\"predicted_peak_bytes\":8053063680,"));
      CHECK(contains(page, "\"saved_bytes\":1073741824,\"budget_bytes\":6979321856"));
      CHECK(contains(page, "\"tightest_rank\":3"));
      CHECK(contains(page, "\"added_time_ratio\":0.041"));
    }
    CHECK(contains(pages.plan, "\"ranks_by_action\":{\"keep\":2,\"recompute\":2}"));
    CHECK(contains(pages.ranks,
                   "\"memory_predicted_peak_bytes\":8053063680,\"memory_keep_all_peak_bytes\":"
                   "8053063680,\"memory_budget_bytes\":6979321856,\"memory_added_time_ratio\":0}"));
    CHECK(contains(pages.ranks, "\"memory_predicted_peak_bytes\":6979321856"));
  }

  TEST_CASE("what ranks hold beside activations is shown from the next round on") {
    SimulatedJob simulated({});
    TelemetryState state(simulated.job(), UnixTime{1});
    const auto page = [&](const char* path) {
      const Served served{state.snapshot(), UnixTime{simulated.now()}, {}};
      return respond({"GET", path, ""}, served).body;
    };
    simulated.step(state);
    CHECK_FALSE(contains(page("/metrics"), "coxswain_memory_held_bytes{kind=\"optimizer\"}"));
    CHECK(contains(page("/api/v1/status"), "\"held_bytes\":{\"parameters\":null,"));
    CHECK_FALSE(contains(page("/status"), "every rank holds"));
    state.set(std::make_shared<const HeldBytes>(HeldBytes{3 << 20, 2 << 20, 0, 1 << 20}));
    simulated.step(state);
    CHECK(contains(page("/metrics"), "coxswain_memory_held_bytes{kind=\"parameters\"} 3145728"));
    CHECK_FALSE(contains(page("/metrics"), "coxswain_memory_held_bytes{kind=\"optimizer\"}"));
    CHECK(contains(page("/api/v1/status"),
                   "\"held_bytes\":{\"parameters\":3145728,\"gradients\":2097152,"
                   "\"optimizer\":null,\"buckets\":1048576}"));
    CHECK(contains(page("/status"),
                   "every rank holds parameters 3.00 MiB, gradients 2.00 MiB, buckets 1.00 MiB."));
  }

  TEST_CASE("plans and facts that come later are followed") {
    SimulatedSetup setup;
    SimulatedJob simulated(setup);
    JobFacts before = simulated.job();
    before.memory = {};
    TelemetryState state(before, UnixTime{1});
    const auto memory = [&state] { return state.snapshot()->views.find<MemoryView>(); };
    CHECK(memory() == nullptr);
    simulated.steps(state, 59);
    REQUIRE(memory() != nullptr);
    CHECK(memory()->predicted_peak_bytes == kSimulatedKeepPeak);
    const auto held = state.snapshot();
    simulated.step(state);  // publishes a plan
    CHECK(memory()->predicted_peak_bytes == kSimulatedKeepPeak - kSimulatedSaving);
    CHECK(held->view<MemoryView>().predicted_peak_bytes == kSimulatedKeepPeak);
  }
}
