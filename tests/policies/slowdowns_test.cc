#include "coordinator/policies/slowdowns.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "coordinator/core/selection.h"
#include "coordinator/policies/rank_runs.h"
#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::Phase;

constexpr std::size_t kForward = static_cast<std::size_t>(Phase::forward);
constexpr std::size_t kForwardChannel = 2;  // the whole, data, forward

cox::RankSignal worker(std::int32_t rank, double data, double forward) {
  cox::RankSignal s;
  s.rank = cox::RankId(rank);
  s.rounds = 1;
  s.phase_seconds[0] = static_cast<float>(data);
  s.phase_seconds[kForward] = static_cast<float>(forward);
  return s;
}

cox::Slowdowns seen(const std::vector<cox::RankSignal>& reports) {
  cox::StepSignals signals;
  signals.reports = reports;
  return cox::against_others(cox::timings_of(reports), cox::summarize(signals));
}

double median_of_others(const std::vector<double>& values, std::size_t skip) {
  std::vector<double> rest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != skip) rest.push_back(values[i]);
  }
  return cox::median_of(rest);
}

}  // namespace

TEST_SUITE("policies") {
  TEST_CASE("runs of ranks put every report beside its rank, whoever is missing") {
    cox::testing::Random random(9);
    for (int run = 0; run < 200; ++run) {
      std::vector<cox::RankId> ranks;
      for (std::int32_t r = 0; r < 20; ++r) {
        if (random.chance(0.7)) ranks.push_back(cox::RankId(r));
      }
      std::vector<cox::RankId> seen;
      std::size_t runs = 0;
      for (const cox::RankRun& piece : cox::runs_of(ranks)) {
        REQUIRE(piece.report == seen.size());
        if (!seen.empty()) REQUIRE(static_cast<int>(piece.rank) > seen.back().value() + 1);
        for (std::size_t i = 0; i < piece.size; ++i) {
          seen.push_back(cox::RankId(static_cast<std::int32_t>(piece.rank + i)));
        }
        ++runs;
      }
      REQUIRE(seen == ranks);
      REQUIRE((runs > 0) == !ranks.empty());
    }
  }

  TEST_CASE("a rank is compared with the median of the others, exactly") {
    cox::testing::Random random(4);
    for (std::size_t n = 3; n < 40; ++n) {
      std::vector<cox::RankSignal> reports;
      std::vector<double> own;
      for (std::size_t r = 0; r < n; ++r) {
        own.push_back(1.0 + static_cast<double>(random.below(6)));
        reports.push_back(worker(static_cast<std::int32_t>(r), 0, own.back()));
      }
      const cox::Slowdowns s = seen(reports);
      for (std::size_t r = 0; r < n; ++r) {
        const double expected = std::log(own[r] / median_of_others(own, r));
        REQUIRE(s.excess[0][r] == doctest::Approx(expected));
      }
    }
  }

  TEST_CASE("a phase says which part of the whole it cost") {
    const cox::Slowdowns s =
        seen({worker(0, 1, 3), worker(1, 1, 3), worker(2, 1, 3), worker(3, 1, 5)});
    CHECK(s.excess[0][3] == doctest::Approx(std::log(6.0 / 4)));
    CHECK(s.excess[kForwardChannel][3] == doctest::Approx(std::log(1 + 2.0 / 4)));
    CHECK(s.excess[1][3] == 0);
  }

  TEST_CASE("hosting and communication are nobody's slowness") {
    std::vector<cox::RankSignal> reports = {worker(0, 0, 3), worker(1, 0, 3), worker(2, 0, 3)};
    reports[0].phase_seconds[static_cast<std::size_t>(Phase::host)] = 50;
    reports[0].phase_seconds[static_cast<std::size_t>(Phase::communication)] = 50;
    const cox::Slowdowns s = seen(reports);
    CHECK(s.excess[0][0] == 0);
    for (std::size_t c = 1; c < cox::kChannels; ++c) {
      CHECK(s.in_use[c] == (c == kForwardChannel));
    }
  }

  TEST_CASE("times of zero and absurd times give finite slowdowns") {
    for (const double odd : {0.0, 1e-30, 1e30}) {
      const cox::Slowdowns s =
          seen({worker(0, 0, 1), worker(1, 0, 1), worker(2, 0, 1), worker(3, odd, odd)});
      for (std::size_t c = 0; c < cox::kChannels; ++c) {
        for (const double excess : s.excess[c]) CHECK(std::isfinite(excess));
      }
    }
  }

  TEST_CASE("of two ranks only what the other did not suffer counts") {
    cox::StragglerMemory memory({}, 2);
    const auto play = [&memory](double a, double b) {
      const std::vector<cox::RankSignal> reports = {worker(0, 0, a), worker(1, 0, b)};
      const cox::Slowdowns s = cox::against_own_past(cox::timings_of(reports), memory);
      for (double& reports_seen : memory.reports()) reports_seen += 1;
      return s;
    };
    for (int i = 0; i < 50; ++i) play(2, 4);
    const cox::Slowdowns both = play(4, 8);
    CHECK(both.excess[0][0] == doctest::Approx(0).epsilon(1e-6));
    CHECK(both.excess[0][1] == doctest::Approx(0).epsilon(1e-6));
    const cox::Slowdowns one = play(2, 8);
    CHECK(one.excess[0][1] > 0.6);
    CHECK(one.excess[0][0] < 0);
  }
}
