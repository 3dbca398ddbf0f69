#include "coordinator/policies/guard/guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::ReasonCode;
using cox::RoundId;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Plays one rank's losses round by round. With `obeys`, the plan follows guard's proposals.
struct Play {
  cox::JobFacts job;
  cox::Config config;
  cox::Plan plan;
  cox::History history;
  cox::PolicyState state;
  bool obeys = true;
  std::uint64_t round = 0;
  std::vector<std::uint64_t> holds, rollbacks;  // rounds of the proposals
  std::vector<ReasonCode> found;

  Play() {
    job.capabilities.rollback = true;
    plan = cox::initial_plan(job);
    config.guard.nonfinite_streak = 3;
    config.guard.hold_rounds = 20;
  }

  void take(const cox::PolicyOutput& output) {
    for (const cox::Reason& finding : output.findings) found.push_back(finding.code);
    for (const cox::Proposal& proposal : output.proposals) {
      const cox::Plan& to = proposal.change.to;
      if (to.hold_until > RoundId(0)) {
        holds.push_back(round);
        if (obeys) plan.hold_until = to.hold_until;
      } else {
        rollbacks.push_back(round);
        if (obeys) plan.rollback = {plan.rollback.ticket + 1, to.rollback.before_round};
      }
    }
  }

  void see(double loss) {
    cox::StepSignals signals;
    cox::StepSummary summary;
    summary.round = RoundId(++round);
    summary.reporting = 1;
    summary.loss = loss;
    summary.nonfinite_ranks = loss == loss ? 0 : 1;
    cox::PolicyOutput output = cox::Guard().propose(
        {job, config, plan, signals, summary, {}, history, {}}, std::move(state));
    state = std::move(output.state);
    take(output);
    history.add(summary);
  }

  void see(double loss, int rounds) {
    for (int i = 0; i < rounds; ++i) see(loss + 0.01 * (i % 3));
  }
};

double sorted_median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// A second definition of a spike. REQUIRES: losses in the middle of every window are positive.
bool is_spike(double loss, const std::vector<double>& before, const cox::GuardConfig& config) {
  const std::size_t count = std::min<std::size_t>(before.size(), config.window_rounds);
  if (count < 8) return false;
  std::vector<double> window(before.end() - static_cast<std::ptrdiff_t>(count), before.end());
  const double median = sorted_median(window);
  for (double& each : window) each = std::fabs(each - median);
  const double deviation = 1.4826 * sorted_median(window);
  return loss > median + config.spike_sigmas * deviation && loss > config.spike_ratio * median;
}

}  // namespace

TEST_SUITE("policies") {
  TEST_CASE("quiet losses, falling or noisy, are left alone") {
    Play play;
    for (int i = 0; i < 400; ++i) play.see(4.0 / (1 + 0.01 * i) + 0.1 * (i % 5));
    CHECK(play.holds.empty());
    CHECK(play.rollbacks.empty());
    CHECK(play.found.empty());
  }

  TEST_CASE("a streak of rounds that are not finite makes it hold, twice as many go back") {
    Play play;
    play.see(2, 10);
    play.see(kNan, 2);
    CHECK(play.holds.empty());
    CHECK(play.found == std::vector{ReasonCode::nonfinite_step});
    play.see(kNan);
    CHECK(play.holds == std::vector<std::uint64_t>{13});
    CHECK(play.plan.hold_until == RoundId(33));
    CHECK(play.rollbacks.empty());
    play.see(kNan, 3);
    CHECK(play.rollbacks == std::vector<std::uint64_t>{16});
    CHECK(play.plan.rollback.before_round == RoundId(11));
  }

  TEST_CASE("a single lost step is told and nothing else") {
    Play play;
    play.see(2, 10);
    play.see(kNan);
    play.see(2, 10);
    CHECK(play.found == std::vector{ReasonCode::nonfinite_step});
    CHECK(play.holds.empty());
  }

  TEST_CASE("a storm of single lost steps is told once, not at every step") {
    Play play;
    play.see(2, 10);
    for (int i = 0; i < 50; ++i) {
      play.see(kNan);
      play.see(2, 2);
    }
    CHECK(play.found == std::vector{ReasonCode::nonfinite_step});
    CHECK(play.holds.empty());
  }

  TEST_CASE("trouble that ends is told to have ended, once") {
    Play play;
    play.see(2, 10);
    play.see(kNan, 4);
    play.see(2, 2);
    CHECK(play.found.back() == ReasonCode::nonfinite_step);
    play.see(2, 20);
    CHECK(play.found == std::vector{ReasonCode::nonfinite_step, ReasonCode::guard_recovered});
  }

  TEST_CASE("a spike must last, and be high by ratio and by deviations") {
    struct Row {
      const char* what;
      double loss;
      int rounds;
      bool acts;
    };
    const Row rows[] = {{"high and lasting", 4, 3, true},
                        {"too short", 4, 2, false},
                        {"below the ratio", 2.9, 10, false},
                        {"low", 1, 10, false},
                        {"infinite", std::numeric_limits<double>::max(), 3, true}};
    for (const Row& row : rows) {
      CAPTURE(row.what);
      Play play;
      play.see(2, 64);
      for (int i = 0; i < row.rounds; ++i) play.see(row.loss);
      play.see(2, 5);
      CHECK(play.holds.empty() != row.acts);
      CHECK(play.rollbacks.empty() != row.acts);
      if (row.acts) CHECK(play.plan.rollback.before_round == RoundId(65));
    }
  }

  TEST_CASE("a loss that scatters widely must be higher still") {
    Play play;
    for (int i = 0; i < 64; ++i) play.see(1 + 0.1 * (i * 7 % 20));
    for (int i = 0; i < 5; ++i) play.see(4);
    CHECK(play.holds.empty());
  }

  TEST_CASE("a new plateau of the loss becomes the usual loss") {
    Play play;
    play.config.guard.max_rollbacks = 0;
    play.see(2, 64);
    play.see(4, 100);
    CHECK(play.rollbacks.empty());
    CHECK(play.found.back() == ReasonCode::guard_recovered);
  }

  TEST_CASE("early losses are compared with nothing") {
    Play play;
    play.see(1, 4);
    play.see(9, 3);
    CHECK(play.holds.empty());
  }

  // Compares with a second, slow definition of a spike.
  TEST_CASE("the first spike of any course of losses is found in its round") {
    int found = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
      CAPTURE(seed);
      cox::testing::Random random(seed);
      Play play;
      play.config.guard.spike_rounds = 1;
      play.config.guard.spike_sigmas = 1 + random.below(4);
      play.config.guard.window_rounds = 8 + static_cast<std::uint32_t>(random.below(20));
      const double noise = random.uniform();
      std::vector<double> losses;
      bool is_over = false;
      while (!is_over && losses.size() < 60) {
        const double loss = 2 + noise * random.normal() + (random.chance(0.05) ? 2 : 0);
        const bool spikes = is_spike(loss, losses, play.config.guard);
        play.see(loss);
        losses.push_back(loss);
        REQUIRE(play.rollbacks.empty() != spikes);
        is_over = spikes;
      }
      found += is_over;
    }
    CHECK(found > 100);
    CHECK(found < 400);
  }

  TEST_CASE("losses below zero spike by deviations alone") {
    Play play;
    play.see(-2, 64);
    for (int i = 0; i < 3; ++i) play.see(-0.5);
    CHECK_FALSE(play.holds.empty());
  }

  TEST_CASE("losses that are zero most of the time spike above what they usually are") {
    Play play;
    for (int i = 0; i < 90; ++i) play.see(i % 3 == 2 ? 0.02 : 0.0);
    for (int i = 0; i < 3; ++i) play.see(0.02);
    CHECK(play.holds.empty());
    for (int i = 0; i < 3; ++i) play.see(5.0);
    CHECK_FALSE(play.holds.empty());
  }

  TEST_CASE("a request that is held back is repeated until the plan shows it") {
    Play play;
    play.obeys = false;
    play.see(2, 10);
    play.see(kNan, 5);
    CHECK(play.holds == std::vector<std::uint64_t>{13, 14, 15});
    play.plan.hold_until = RoundId(40);
    play.see(kNan);
    CHECK(play.holds.size() == 3);
    CHECK(play.rollbacks.size() == 1);
  }

  TEST_CASE("rollbacks end at their limit, which is told once") {
    Play play;
    play.config.guard.max_rollbacks = 2;
    play.see(2, 10);
    play.see(kNan, 100);
    CHECK(play.rollbacks.size() == 2);
    CHECK(std::count(play.found.begin(), play.found.end(), ReasonCode::rollback_limit) == 1);
  }

  TEST_CASE("without snapshots it holds and never orders a rollback") {
    Play play;
    play.job.capabilities.rollback = false;
    play.see(2, 10);
    play.see(kNan, 100);
    CHECK_FALSE(play.holds.empty());
    CHECK(play.rollbacks.empty());
  }

  TEST_CASE("after a rollback was ordered it waits until all ranks apply it") {
    Play play;
    play.see(2, 10);
    play.see(kNan, 6);
    REQUIRE(play.rollbacks.size() == 1);
    play.plan.id.number = 5;  // in flight: reports still apply an older plan
    play.see(kNan, 50);
    CHECK(play.rollbacks.size() == 1);
  }

  TEST_CASE("a round without reports teaches it nothing") {
    Play play;
    play.see(2, 10);
    play.see(kNan, 2);
    const cox::PolicyState before = play.state;
    cox::StepSignals signals;
    cox::StepSummary nobody;
    nobody.loss = kNan;
    nobody.nonfinite_ranks = 1;
    const cox::PolicyOutput output = cox::Guard().propose(
        {play.job, play.config, play.plan, signals, nobody, {}, play.history, {}}, play.state);
    CHECK(output.state == before);
    CHECK(output.findings.empty());
    CHECK(output.proposals.empty());
  }

  TEST_CASE("a saved state that makes no sense counts as fresh") {
    Play sick;
    sick.see(2, 20);
    sick.see(kNan, 20);
    REQUIRE_FALSE(sick.holds.empty());
    const std::string whole = sick.state.bytes();
    cox::testing::Random random(3);
    for (int i = 0; i < 300; ++i) {
      std::string bytes = whole;
      bytes.resize(random.below(whole.size()));
      if (i % 2 == 0) bytes.append(whole.size() - bytes.size(), '\xff');
      Play play;
      play.state = cox::PolicyState::from_bytes(bytes);
      play.see(2, 20);
      CHECK(play.holds.empty());
      CHECK(play.found.empty());
    }
  }
}
