#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/catalogue.h"
#include "metrics/telemetry_state.h"
#include "simulated_job.h"
#include "text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

const BuildInfo kBuild{"0.1.0", "abc"};

// Series text -> value text.
std::map<std::string, std::string> parse(const std::string& text) {
  std::map<std::string, std::string> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto space = line.rfind(' ');
    series[line.substr(0, space)] = line.substr(space + 1);
  }
  return series;
}

std::string after(std::int32_t ranks, int rounds, bool numerics = false) {
  SimulatedSetup setup;
  setup.ranks = ranks;
  setup.numerics = numerics;
  SimulatedJob job(setup);
  TelemetryState state(job.job(), UnixTime{setup.start}, kBuild);
  job.steps(state, rounds);
  return exposition(*state.snapshot());
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("every row of the catalogue reads values whose labels are those that it lists") {
    SimulatedSetup setup;
    setup.numerics = true;
    SimulatedJob job(setup);
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 80);
    for (const Metric& row : catalogue()) {
      CAPTURE(row.name);
      if (row.kind == MetricKind::histogram) continue;
      std::set<std::vector<std::string>> distinct;
      const Emit check([&](std::span<const std::string_view> labels, double) {
        CHECK(distinct.insert({labels.begin(), labels.end()}).second);
        REQUIRE(labels.size() == row.values.labels.size());
        for (std::size_t i = 0; i < labels.size(); ++i) {
          const auto& known = row.values.labels[i].values;
          const bool is_listed = std::find(known.begin(), known.end(), labels[i]) != known.end();
          CHECK((known.empty() || is_listed));
        }
      });
      row.values.read(*state.snapshot(), check);
      CHECK_FALSE(distinct.empty());
    }
  }

  TEST_CASE("the exposition has every row of the catalogue, in its order, in every state") {
    for (const int rounds : {0, 80}) {
      SimulatedJob job({});
      TelemetryState state(job.job(), UnixTime{1});
      job.steps(state, rounds);
      const std::string text = exposition(*state.snapshot());
      std::size_t at = 0;
      for (const Metric& row : catalogue()) {
        CAPTURE(row.name);
        at = text.find("# TYPE " + row.name + " " + std::string(to_string(row.kind)) + "\n", at);
        REQUIRE(at != std::string::npos);
      }
    }
  }

  TEST_CASE("known label sets are there at 0 before the first round") {
    SimulatedJob job({});
    const TelemetryState state(job.job(), UnixTime{1});
    const auto series = parse(exposition(*state.snapshot()));
    CHECK(series.at("coxswain_decisions_total{policy=\"guard\",outcome=\"changed\"}") == "0");
    CHECK(series.at("coxswain_report_faults_total{fault=\"missing\"}") == "0");
    CHECK(series.at("coxswain_ranks{state=\"missing\"}") == "4");
    CHECK(series.at("coxswain_worst_rank{slot=\"4\"}") == "-1");
    CHECK(series.at("coxswain_step_duration_seconds_bucket{le=\"+Inf\"}") == "0");
    CHECK_FALSE(series.contains("coxswain_loss"));  // not known yet
  }

  TEST_CASE("values are those of the round") {
    const auto series = parse(after(4, 80));
    CHECK(series.at("coxswain_rounds_total") == "80");
    CHECK(series.at("coxswain_plan_id") == "2");
    CHECK(series.at("coxswain_plan_precision_blocks{precision=\"bf16\"}") == "12");
    CHECK(series.at("coxswain_plan_action_blocks{action=\"recompute\"}") == "4");
    CHECK(series.at("coxswain_worst_rank{slot=\"0\"}") == "2");
    CHECK(series.at("coxswain_step_duration_seconds_count") == "80");
    CHECK(series.at("coxswain_build_info{version=\"0.1.0\",revision=\"abc\"}") == "1");
    CHECK(std::stod(series.at("coxswain_rank_step_skew_ratio")) > 1.03);
  }

  TEST_CASE("codes of a user's policies share one series, which never falls") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    const StepSignals signals;
    const Plan plan = initial_plan(job.job());
    int told = 0;
    for (const int code : {1002, 1001, 1002, 1003}) {
      Decision decision;
      decision.reasons.emplace_back().code = static_cast<ReasonCode>(code);
      state.record({signals, decision, plan, job.job(), {}});
      const auto series = parse(exposition(*state.snapshot()));
      CHECK(series.at("coxswain_reasons_total{code=\"unknown\"}") == std::to_string(++told));
    }
  }

  TEST_CASE("the number of series does not grow with the number of ranks") {
    std::set<std::string> few;
    std::set<std::string> many;
    for (const auto& [name, value] : parse(after(2, 80, true))) few.insert(name);
    for (const auto& [name, value] : parse(after(700, 80, true))) many.insert(name);
    CHECK((few == many));
    CHECK(few.size() < 480);
  }

  TEST_CASE("no scrape has a value that is not finite, whatever the rounds were") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.nonfinite = true;
    job.steps(state, 100);
    const auto series = parse(exposition(*state.snapshot()));
    for (const auto& sample : series) {
      CAPTURE(sample.first);
      CHECK(std::isfinite(std::stod(sample.second)));
    }
    CHECK(series.at("coxswain_nonfinite_rounds_total{source=\"loss\"}") == "100");
  }
}
