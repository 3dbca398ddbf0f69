#include "coordinator/core/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::Phase;
using cox::RankId;
using cox::SignalFlag;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

cox::RankSignal worker(std::int32_t rank, float forward) {
  cox::RankSignal s;
  s.rank = RankId(rank);
  s.rounds = 1;
  s.loss = 2;
  s.weight = 1;
  s.gradient_norm = 1;
  s.phase_seconds[static_cast<std::size_t>(Phase::forward)] = forward;
  s.wall_seconds = forward;
  return s;
}

cox::StepSignals signals_of(std::vector<cox::RankSignal> reports) {
  cox::StepSignals signals;
  signals.reports = std::move(reports);
  return signals;
}

const cox::Spread& forward_of(const cox::StepSummary& s) {
  return s.phases[static_cast<std::size_t>(Phase::forward)];
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a spread has the values that sorting gives") {
    cox::testing::Random random(11);
    for (std::size_t n = 1; n < 120; ++n) {
      std::vector<double> values(n);
      for (double& value : values) value = static_cast<double>(random.below(50));
      std::vector<RankId> ranks(n);
      for (std::size_t i = 0; i < n; ++i) ranks[i] = RankId(static_cast<std::int32_t>(i));
      const auto max = std::max_element(values.begin(), values.end()) - values.begin();
      std::vector<double> sorted = values;
      std::sort(sorted.begin(), sorted.end());
      const cox::Spread spread = cox::spread_of(values, ranks);
      const double at = 0.95 * static_cast<double>(n - 1);
      const auto low = static_cast<std::size_t>(at);
      const double high = sorted[std::min(low + 1, n - 1)];
      REQUIRE(spread.min == sorted.front());
      REQUIRE(spread.max == sorted.back());
      REQUIRE(spread.median == (sorted[(n - 1) / 2] + sorted[n / 2]) / 2);
      REQUIRE(spread.p95 ==
              doctest::Approx(sorted[low] + (high - sorted[low]) * (at - std::floor(at))));
      REQUIRE(spread.rank_of_max == RankId(static_cast<std::int32_t>(max)));
      REQUIRE(spread.count == static_cast<std::int32_t>(n));
    }
  }

  TEST_CASE("nobody's values make an empty spread") {
    const cox::StepSummary s = cox::summarize(signals_of({}));
    CHECK(s.reporting == 0);
    CHECK(forward_of(s).count == 0);
    CHECK(forward_of(s).rank_of_max == RankId(-1));
    CHECK(std::isnan(s.loss));
    CHECK(std::isnan(s.gradient_norm));
    CHECK(s.worst.empty());
    CHECK(s.plan_held_min == 0);
  }

  TEST_CASE("times that are negative or not finite stay out of statistics") {
    const cox::StepSummary s =
        cox::summarize(signals_of({worker(0, 1), worker(1, kNanF), worker(2, -5), worker(3, 3)}));
    CHECK(s.reporting == 4);
    CHECK(forward_of(s).count == 2);
    CHECK(forward_of(s).min == 1);
    CHECK(forward_of(s).median == 2);
    CHECK(forward_of(s).max == 3);
  }

  TEST_CASE("ranks that have finished count as finished and not as fast") {
    cox::RankSignal finished = worker(1, 0);
    finished.set(SignalFlag::finished);
    finished.loss = kNan;
    const cox::StepSummary s = cox::summarize(signals_of({worker(0, 2), finished}));
    CHECK(s.finished == 1);
    CHECK(forward_of(s).min == 2);
    CHECK(s.nonfinite_ranks == 0);
    CHECK(s.loss == 2);
  }

  TEST_CASE("ranks that skipped, went back or did a step again are counted apart") {
    cox::RankSignal a = worker(0, 1), b = worker(1, 1), c = worker(2, 1);
    a.set(SignalFlag::step_skipped);
    a.set(SignalFlag::step_repeated);
    b.set(SignalFlag::step_repeated);
    c.set(SignalFlag::rolled_back);
    const cox::StepSummary s = cox::summarize(signals_of({a, b, c}));
    CHECK(s.skipped_ranks == 1);
    CHECK(s.repeated_ranks == 2);
    CHECK(s.rolled_back_ranks == 1);
  }

  TEST_CASE("seconds are per covered round, and hosting is nobody's own work") {
    cox::RankSignal a = worker(0, 8);
    a.rounds = 4;
    a.phase_seconds[static_cast<std::size_t>(Phase::host)] = 100;
    a.phase_seconds[static_cast<std::size_t>(Phase::communication)] = 100;
    const cox::StepSummary s = cox::summarize(signals_of({a}));
    CHECK(s.own_seconds.max == 2);
    CHECK(s.rounds == 4);
  }

  TEST_CASE("the worst ranks are the slowest, with the phase that costs them most") {
    std::vector<cox::RankSignal> reports;
    for (std::int32_t r = 0; r < 20; ++r) reports.push_back(worker(r, 1));
    reports[7] = worker(7, 3);
    reports[12] = worker(12, 2);
    reports[15] = worker(15, 2);
    reports[12].phase_seconds[static_cast<std::size_t>(Phase::data)] = 0.5;
    const cox::StepSummary s = cox::summarize(signals_of(reports));
    REQUIRE(s.worst.size() == cox::kWorstRanks);
    CHECK(s.worst[0].rank == RankId(7));
    CHECK(s.worst[0].phase == Phase::forward);
    CHECK(s.worst[0].slowdown_ratio == 3);
    CHECK(s.worst[1].rank == RankId(12));
    CHECK(s.worst[2].rank == RankId(15));
    CHECK(s.worst[3].rank == RankId(0));
    CHECK(s.worst[4].rank == RankId(1));
  }

  TEST_CASE("the loss is the weighted mean of finite ones, and the others are counted") {
    cox::RankSignal a = worker(0, 1), b = worker(1, 1), c = worker(2, 1);
    a.loss = 1;
    a.weight = 3;
    b.loss = 5;
    b.weight = 1;
    c.loss = kNan;
    const cox::StepSummary s = cox::summarize(signals_of({a, b, c}));
    CHECK(s.loss == 2);
    CHECK(s.nonfinite_ranks == 1);
    CHECK(s.first_nonfinite_rank == RankId(2));
  }

  TEST_CASE("a rank without samples has no loss, and that is no trouble") {
    cox::RankSignal a = worker(0, 1), b = worker(1, 1);
    b.loss = kNan;
    b.weight = 0;
    const cox::StepSummary s = cox::summarize(signals_of({a, b}));
    CHECK(s.loss == 2);
    CHECK(s.nonfinite_ranks == 0);
    b.set(SignalFlag::nonfinite_loss);
    CHECK(cox::summarize(signals_of({a, b})).nonfinite_ranks == 1);
  }

  TEST_CASE("without weights losses count evenly") {
    cox::RankSignal a = worker(0, 1), b = worker(1, 1);
    a.weight = b.weight = 0;
    a.loss = 1;
    CHECK(cox::summarize(signals_of({a, b})).loss == 1.5);
  }

  TEST_CASE("the plan that all hold is the oldest of those that apply plans") {
    cox::RankSignal a = worker(0, 1), b = worker(1, 1), c = worker(2, 1);
    a.plan_held = 4;
    a.plan_applied = 2;
    b.plan_held = 3;
    b.plan_applied = 3;
    c.set(SignalFlag::watching);
    c.set(SignalFlag::full_plan_wanted);
    const cox::StepSummary s = cox::summarize(signals_of({a, b, c}));
    CHECK(s.plan_held_min == 3);
    CHECK(s.plan_applied_max == 3);
    CHECK(s.watching == 1);
    CHECK(s.full_plan_wanted);
  }

  TEST_CASE("memory is compared with its limit where one is known") {
    cox::RankSignal a = worker(0, 1), b = worker(4, 1);
    a.memory_used_bytes = 100;
    b.memory_used_bytes = 30;
    b.memory_limit_bytes = 40;
    const cox::StepSummary s = cox::summarize(signals_of({a, b}));
    CHECK(s.memory_used_ratio.count == 1);
    CHECK(s.memory_used_ratio.max == 0.75);
    CHECK(s.memory_used_ratio.rank_of_max == RankId(4));
  }
}
