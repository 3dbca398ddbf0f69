// The rate of findings of our own rules in runs without faults.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/analysis/findings/run_view.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using namespace diagnosis;

// Portable: distributions of the standard library differ between libraries.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * 3.14159265358979 * uniform());
  }
  // Returns Student's t with three degrees of freedom, divided by its deviation. Reaches ten
  // deviations now and then.
  double heavy() {
    const double a = normal();
    const double b = normal();
    const double c = normal();
    return normal() / std::sqrt(a * a + b * b + c * c);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

// The variation of a rank's work from step to step.
struct Kind {
  double deviation = 0.03;  // divided by the mean
  double correlation = 0;   // with the step before
  bool is_heavy = false;
  double together = 0;  // divided by the mean, of all ranks at once: longer batches for a while
  double slowdown = 0;  // rank 0's
  double by_turns = 0;  // multiplies a step's work by e to the power of so many deviations
  double fall = 0.02;   // the loss's fall, a step
  double loss_noise = 0.02;
};

// Returns a run of 2 to 8 equally fast ranks with 40 to 120 steps and a falling loss.
RunRecord quiet_run(const Kind& kind, std::uint64_t seed) {
  Noise noise(seed);
  RunRecord run;
  run.ranks.resize(2 + noise.below(7));
  const std::size_t steps = 40 + noise.below(81);
  std::vector<double> of_all;
  for (double at = 0; of_all.size() < steps; of_all.push_back(std::exp(kind.together * at)))
    at = 0.9 * at + std::sqrt(0.19) * noise.normal();
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    RankRecord& rank = run.ranks[r];
    rank.rank = rank.info.rank = static_cast<std::int32_t>(r);
    double at = noise.normal();
    for (std::size_t s = 0; s < steps; ++s) {
      const double fresh = kind.is_heavy ? noise.heavy() : noise.normal();
      at = kind.correlation * at + std::sqrt(1 - kind.correlation * kind.correlation) * fresh;
      const double factor = of_all[s] * (r == 0 ? 1 + kind.slowdown : 1) *
                            (kind.by_turns > 0 ? std::exp(kind.by_turns * at)
                                               : std::max(0.2, 1 + kind.deviation * at));
      rank.steps.push(static_cast<double>(s));
      rank.phases["forward"].push(0.03 * factor);
      rank.phases["backward"].push(0.06 * factor);
      rank.phases["comm"].push(0.005);
      rank.scalars["loss"].push(4 - kind.fall * static_cast<double>(s) +
                                kind.loss_noise * noise.normal());
      rank.scalars["grad_norm"].push(std::exp(0.3 * noise.heavy()));
      rank.memory["alloc"].push(1e9 + 1e7 * noise.normal());
    }
  }
  return run;
}

const std::string kNamingRanks = " that names ranks";

// Returns the number of runs with a finding of each code.
std::map<std::string, std::size_t> found_in(const Kind& kind, std::size_t runs) {
  std::map<std::string, std::size_t> out;
  for (std::size_t i = 0; i < runs; ++i) {
    const RunRecord run = quiet_run(kind, 1000 + i);
    const RunView view = view_of(run, std::nullopt);
    const Budget budget = budget_of(view, {});
    for (const Finding& f : own_findings({&view, &budget, std::nullopt})) {
      ++out[f.code];
      if (!f.ranks.empty()) ++out[f.code + kNamingRanks];
    }
  }
  return out;
}

std::string text_of(const std::map<std::string, std::size_t>& found) {
  std::string out;
  for (const auto& [code, count] : found) out += code + " " + std::to_string(count) + " ";
  return out;
}

std::size_t stragglers_in(const Kind& kind, std::size_t runs) {
  return found_in(kind, runs)["DIST.STRAGGLER"];
}

TEST_SUITE("analysis.false_alarms") {
  TEST_CASE("of thousands of runs whose steps vary independently none names a rank") {
    CHECK(stragglers_in({.deviation = 0.15}, 3000) == 0);
    CHECK(stragglers_in({.deviation = 0.15, .is_heavy = true}, 2000) == 0);
  }

  TEST_CASE("steps that vary by 3 % are no finding of any code") {
    const auto normal = found_in({}, 1000);
    CHECK_MESSAGE(normal.empty(), text_of(normal));
    // Heavy-tailed losses, gradients and times spike together now and then.
    auto heavy = found_in({.is_heavy = true}, 1000);
    CHECK(heavy["CROSS.CORRELATED_INSTABILITY"] <= 2);
    heavy.erase("CROSS.CORRELATED_INSTABILITY");
    CHECK_MESSAGE(heavy.empty(), text_of(heavy));
  }

  TEST_CASE("ranks are named as seldom where steps resemble the ones before, up to a degree") {
    CHECK(stragglers_in({.correlation = 0.3}, 1000) <= 1);
    CHECK(stragglers_in({.correlation = 0.6}, 1000) <= 4);  // 2 of a thousand
    CHECK(stragglers_in({.correlation = 0.9}, 500) <= 25);  // 39 of a thousand
  }

  TEST_CASE("work that varies by factors from step to step names no rank") {
    CHECK(stragglers_in({.by_turns = 0.7}, 2000) <= 2);
    CHECK(stragglers_in({.by_turns = 1.4}, 2000) <= 2);
    CHECK(stragglers_in({.correlation = 0.3, .by_turns = 1}, 1000) <= 1);
    CHECK(stragglers_in({.correlation = 0.6, .by_turns = 0.7}, 1000) <= 1);
    CHECK(stragglers_in({.slowdown = 9, .by_turns = 0.7}, 200) >= 190);
  }

  TEST_CASE("losses of ranks' own samples, which vary much, blame no rank") {
    auto found = found_in({.fall = 0.01, .loss_noise = 0.5}, 1000);
    CHECK_MESSAGE(found["CONVERGENCE.NO_PROGRESS" + kNamingRanks] <= 1, text_of(found));
  }

  TEST_CASE("what makes steps longer for all ranks hides no slow rank, and names none") {
    CHECK(stragglers_in({.together = 0.3}, 500) <= 1);
    CHECK(stragglers_in({.together = 0.3, .slowdown = 0.15}, 200) >= 195);
  }

  TEST_CASE("a rank that is 8 % slower is found in nine of ten short runs that vary by 3 %") {
    CHECK(stragglers_in({.slowdown = 0.08}, 500) >= 450);
  }
}

}  // namespace
}  // namespace cox
