// S1: the delay of finding slow ranks, near the theoretical bound, in seeded scenarios, with
// published rules beside the estimates. Also the cost of the estimates for S4.
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "coordinator/testing/simulated_job.h"
#include "tests/bench/line.h"
#include "tests/estimates/detection_trial.h"
#include "tests/estimates/published_rules.h"

namespace {

using namespace cox;
using bench::Better;
using bench::Effort;
using bench::Line;
using testing::StragglerKind;
using testing::StragglerScenario;

constexpr std::size_t kKinds = testing::kStragglerKinds;

std::string name_of(std::size_t kind) {
  return std::string(to_string(static_cast<StragglerKind>(kind)));
}

double per(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
}

// ---- All kinds of scenarios.

void print_score(const test::Score& score, std::string_view rule, std::string_view scenarios) {
  const auto line = [&](double value, const char* unit, const char* figure) {
    Line made("S1", value, unit);
    made.with("figure", figure).with("rule", rule).with("scenarios", scenarios);
    made.with("count", static_cast<double>(score.scenarios));
    made.with("wanted", static_cast<double>(score.wanted));
    made.with("found", static_cast<double>(score.found));
    made.with("wrong", static_cast<double>(score.wrong));
    return made;
  };
  const bool is_ours = rule == "estimates";
  const bool is_all = scenarios == "all kinds";
  Line f1 = line(score.f1(), "F1", "ranks slow by 10 % or more");
  if (is_ours && is_all) f1.limit(0.995, Better::higher);
  f1.print();
  if (!is_all) return;
  Line phase = line(per(score.right_phase, score.found), "of found", "right phase");
  if (is_ours) phase.limit(0.99, Better::higher);
  phase.print();
  Line wrong = line(1e6 * score.false_alarms_per_rank_round(), "per 10^6 rank-steps",
                    "names of ranks that are not slow");
  if (is_ours) wrong.limit(1);
  wrong.with("rank_steps", static_cast<double>(score.rank_rounds)).print();
  line(per(score.delay, score.found), "steps", "mean delay of a name").print();
}

void scenarios(std::uint64_t count) {
  std::array<test::EstimatesScore, kKinds> kinds;
  test::EstimatesScore all;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    const StragglerScenario scenario = testing::straggler_scenario(seed);
    const test::EstimatesScore score = test::play_to_estimates(scenario);
    kinds[static_cast<std::size_t>(scenario.kind)].add(score);
    all.add(score);
  }
  print_score(all.ranks, "estimates", "all kinds");
  for (std::size_t k = 0; k < kKinds; ++k) print_score(kinds[k].ranks, "estimates", name_of(k));
  const auto told = [](std::int64_t found, std::int64_t there, std::int64_t wrong,
                       const char* figure) {
    Line("S1", per(found, there), "of them")
        .better(Better::higher)
        .with("figure", figure)
        .with("there", static_cast<double>(there))
        .with("wrong", static_cast<double>(wrong))
        .print();
  };
  told(all.slow_jobs_found, all.slow_jobs, all.slow_jobs_wrong, "jobs slow as a whole, named");
  told(all.slow_hosts_found, all.slow_hosts, all.slow_hosts_wrong, "slow hosts, named");
  told(all.sizes_covered, all.sizes, 0, "sizes within their 95 % interval");
}

void published(std::uint64_t count) {
  for (std::size_t r = 0; r < test::kPublishedRules; ++r) {
    const auto published = static_cast<test::PublishedRule>(r);
    std::array<test::Score, kKinds> kinds;
    test::Score all;
    for (std::uint64_t seed = 1; seed <= count; ++seed) {
      const StragglerScenario scenario = testing::straggler_scenario(seed);
      const test::Score score = test::play(scenario, *test::make_rule(published));
      kinds[static_cast<std::size_t>(scenario.kind)].add(score);
      all.add(score);
    }
    print_score(all, to_string(published), "all kinds");
    for (std::size_t k = 0; k < kKinds; ++k)
      print_score(kinds[k], to_string(published), name_of(k));
  }
}

// ---- Delay and false alarms against the size of a slowdown.

void curves(int runs) {
  constexpr std::array<double, 8> kExtra = {0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1};
  constexpr std::int32_t kRanks = 64;
  const double log_of_rate = std::log(1e6);
  for (const double extra : kExtra) {
    const double information = std::pow(std::log(1 + extra), 2) / (2 * 0.03 * 0.03);
    const auto line = [&](std::string_view rule, const test::Delay& delay) {
      Line made("S1", delay.mean, "steps");
      if (extra == kExtra[0] && rule == "estimates") made.limit(13);
      made.with("figure", "mean delay at 3 % of noise").with("rule", rule);
      made.with("slowdown_percent", 100 * extra).with("found", delay.found);
      made.with("false_alarms_per_million", delay.false_alarms_per_million);
      made.with("p99", delay.p99).with("bound", log_of_rate / information);
      made.with("ranks", kRanks).with("runs", runs).print();
    };
    line("estimates", test::delay_of({}, extra, kRanks, runs, 200));
    for (std::size_t r = 0; r < test::kPublishedRules; ++r) {
      const auto rule = static_cast<test::PublishedRule>(r);
      line(to_string(rule), test::delay_of(rule, extra, kRanks, std::min(runs, 100), 200));
    }
  }
  const double bound_alone = log_of_rate * 2 * 0.03 * 0.03 / std::pow(std::log(1.05), 2);
  for (const std::int32_t ranks : {8, 16, 256, 1024}) {
    const test::Delay delay = test::delay_of({}, 0.05, ranks, runs / 2, 200);
    Line("S1", delay.mean, "steps")
        .with("figure", "mean delay at 3 % of noise, other job sizes")
        .with("slowdown_percent", 5)
        .with("ranks", ranks)
        .with("runs", runs / 2)
        .with("p99", delay.p99)
        .with("bound", bound_alone * ranks / (ranks - 1))
        .print();
  }
}

// ---- S4: the cost of the estimates.

double cpu_microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

// Times one round of 1,024 ranks that book time on six phases and measure waiting.
void detector(const char* goal, int rounds) {
  testing::Scenario scenario;
  scenario.ranks = 1024;
  scenario.blocks = 1;
  scenario.waiting = testing::WaitingKind::measured;
  testing::SimulatedJob simulated(scenario, {}, {});
  const StragglerConfig settings;
  Slowness slowness = fresh_slowness(1024);
  std::vector<double> spent;
  for (int i = 0; i < rounds + 40; ++i) {
    const StepSignals signals = simulated.signals();
    SeenRound seen = see_round(signals);
    simulated.skip();
    const double start = cpu_microseconds();
    slowness = learn_slowness(std::move(slowness), signals, std::move(seen.timings), seen.summary,
                              {}, settings);
    if (i >= 40) spent.push_back(cpu_microseconds() - start);
  }
  const auto line = [&](double value, const char* figure) {
    Line made(goal, value, "us");
    made.with("figure", figure).with("ranks", 1024).with("phases", 6).with("rounds", rounds);
    return made;
  };
  line(bench::quantile(spent, 0.5), "S4: update of the detector, CPU time, p50").limit(200).print();
  line(bench::quantile(spent, 0.99), "S4: update of the detector, CPU time, p99").print();
  Estimates estimates;
  estimates.slowness = slowness;
  const double bytes = static_cast<double>(encode_state(estimates).size()) / 1024;
  Line(goal, bytes, "bytes")
      .limit(4096)
      .with("figure", "S4: what the detector remembers of a rank")
      .print();
}

}  // namespace

// bench_s1 [--quick]: S1. bench_s1 detector [--quick]: the detector's lines of S4.
int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == Effort::quick;
  if (argc > 1 && std::strcmp(argv[1], "detector") == 0) {
    detector("S4", is_quick ? 100 : 2000);
    return 0;
  }
  detector("S1", is_quick ? 100 : 2000);
  curves(is_quick ? 40 : 300);
  scenarios(is_quick ? 300 : 10000);
  published(is_quick ? 60 : 300);
  return 0;
}
