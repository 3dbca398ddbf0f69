// Estimates from one round and from many rounds of reports.
#include "coordinator/estimates/estimates.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "coordinator/core/selection.h"
#include "coordinator/decide/policy.h"
#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::Phase;

constexpr std::size_t kForwardChannel = 2;  // the whole, data, forward

float& seconds(cox::RankSignal& s, Phase phase) {
  return s.phase_seconds[static_cast<std::size_t>(phase)];
}

cox::RankSignal worker(std::int32_t rank, double data, double forward) {
  cox::RankSignal s;
  s.rank = cox::RankId(rank);
  s.rounds = 1;
  seconds(s, Phase::data) = static_cast<float>(data);
  seconds(s, Phase::forward) = static_cast<float>(forward);
  return s;
}

// Rounds of a job whose reports the test makes.
struct Rounds {
  explicit Rounds(std::int32_t ranks) { job.world_size = ranks; }

  const cox::Estimates& see(const std::vector<cox::RankSignal>& reports) {
    cox::StepSignals signals;
    signals.round = cox::RoundId(++round);
    signals.reports = reports;
    estimates =
        cox::estimate(std::move(estimates), job, config, plan, signals, cox::summarize(signals));
    return estimates;
  }
  // Returns the excess of a channel, which in the first round is its level.
  const std::vector<double>& level(std::size_t channel) const {
    return estimates.slowness.channels[channel].level;
  }

  cox::JobFacts job;
  cox::Config config;
  cox::Plan plan;
  cox::Estimates estimates;
  std::uint64_t round = 0;
};

double median_of_others(const std::vector<double>& values, std::size_t skip) {
  std::vector<double> rest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != skip) rest.push_back(values[i]);
  }
  return cox::median_of(rest);
}

// Ranks whose steps take a time for each sample and a fixed time.
struct Worker {
  double per_sample = 1e-3;
  double fixed = 0;
  double noise = 0.01;
};

std::vector<cox::RankSignal> step(const std::vector<Worker>& workers,
                                  const std::vector<std::uint32_t>& samples,
                                  cox::testing::Random& random) {
  std::vector<cox::RankSignal> reports;
  for (std::size_t r = 0; r < workers.size(); ++r) {
    const Worker& w = workers[r];
    const double work = (w.per_sample * samples[r] + w.fixed) * std::exp(w.noise * random.normal());
    reports.push_back(worker(static_cast<std::int32_t>(r), 0.1 * work, 0.9 * work));
    reports.back().samples = samples[r];
  }
  return reports;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("levels stand beside their ranks, whoever is missing") {
    cox::testing::Random random(9);
    for (int run = 0; run < 200; ++run) {
      Rounds rounds(20);
      std::vector<cox::RankSignal> reports;
      for (std::int32_t r = 0; r < 20; ++r) {
        if (random.chance(0.7)) reports.push_back(worker(r, 0, r % 3 == 0 ? 2 : 1));
      }
      if (reports.size() < 3) continue;
      const cox::Estimates& estimates = rounds.see(reports);
      std::vector<double> seen(20, 0.0);
      for (const cox::RankSignal& report : reports) {
        seen[static_cast<std::size_t>(report.rank.value())] = 1;
      }
      REQUIRE(estimates.slowness.reports == seen);
      for (std::size_t r = 0; r < 20; ++r) REQUIRE((rounds.level(0)[r] == 0 || seen[r] == 1));
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
      Rounds rounds(static_cast<std::int32_t>(n));
      rounds.see(reports);
      for (std::size_t r = 0; r < n; ++r) {
        const double expected = std::log(own[r] / median_of_others(own, r));
        REQUIRE(rounds.level(0)[r] == doctest::Approx(expected));
      }
    }
  }

  TEST_CASE("a phase says which part of the whole it cost") {
    Rounds rounds(4);
    rounds.see({worker(0, 1, 3), worker(1, 1, 3), worker(2, 1, 3), worker(3, 1, 5)});
    CHECK(rounds.level(0)[3] == doctest::Approx(std::log(6.0 / 4)));
    CHECK(rounds.level(kForwardChannel)[3] == doctest::Approx(std::log(1 + 2.0 / 4)));
    CHECK(rounds.level(1)[3] == 0);
  }

  TEST_CASE("hosting and communication are nobody's slowness") {
    Rounds rounds(3);
    std::vector<cox::RankSignal> reports = {worker(0, 0, 3), worker(1, 0, 3), worker(2, 0, 3)};
    seconds(reports[0], Phase::host) = 50;
    seconds(reports[0], Phase::communication) = 50;
    rounds.see(reports);
    for (std::size_t c = 0; c < cox::kChannels; ++c) CHECK(rounds.level(c)[0] == 0);
  }

  TEST_CASE("a rank's own part of communication counts where all tell it from waiting") {
    constexpr std::size_t kCommunicationChannel = cox::kChannels - 1;
    struct Case {
      bool all_measure;
      bool has_cores;  // for all ranks
    };
    for (const Case& c : {Case{true, true}, {false, true}, {true, false}}) {
      CAPTURE(c.all_measure);
      CAPTURE(c.has_cores);
      const bool counts = c.all_measure && c.has_cores;
      Rounds rounds(4);
      std::vector<cox::RankSignal> reports;
      for (std::int32_t r = 0; r < 4; ++r) {
        reports.push_back(worker(r, 0, 3));
        seconds(reports.back(), Phase::communication) = r == 3 ? 2 : 5;
        reports.back().waiting_seconds = r == 3 ? 0 : 4;
        if (c.all_measure || r > 0) reports.back().set(cox::SignalFlag::waiting_measured);
        if (!c.has_cores) reports.back().set(cox::SignalFlag::without_queueing);
      }
      rounds.see(reports);
      // Rank 3 arrives last and needs 2 s; the others need 1.
      CHECK(rounds.level(0)[3] == doctest::Approx(counts ? std::log(5.0 / 4) : 0));
      CHECK(rounds.level(kCommunicationChannel)[3] ==
            doctest::Approx(counts ? std::log(5.0 / 4) : 0));
      CHECK(rounds.level(0)[0] == 0);
    }
  }

  TEST_CASE("a rank that makes activations again by plan is not slow for that") {
    Rounds rounds(4);
    std::vector<cox::RankSignal> reports;
    for (std::int32_t r = 0; r < 4; ++r) {
      reports.push_back(worker(r, 0, 3));
      seconds(reports.back(), Phase::backward) = r == 2 ? 9 : 6;
      if (r == 2) reports.back().recompute_seconds = 3;
    }
    rounds.see(reports);
    for (std::size_t c = 0; c < cox::kChannels; ++c) CHECK(rounds.level(c)[2] == 0);
  }

  TEST_CASE("a rank with longer sequences is not slow where tokens are counted") {
    cox::testing::Random random(12);
    Rounds rounds(4);
    for (int i = 0; i < 200; ++i) {
      auto reports = step(std::vector<Worker>(4, {.per_sample = 1e-2}), {8, 8, 8, 12}, random);
      for (cox::RankSignal& report : reports) {
        report.tokens = report.samples * 100;
        report.samples = 8;
      }
      rounds.see(reports);
      REQUIRE(rounds.estimates.slowness.slow.empty());
    }
  }

  TEST_CASE("the size of a slowdown lies in its interval, and the states follow each other") {
    cox::testing::Random random(31);
    int covered = 0, suspected = 0;
    for (int run = 0; run < 200; ++run) {
      Rounds rounds(8);
      std::vector<Worker> workers(8, {.per_sample = 1e-2, .noise = 0.03});
      const std::vector<std::uint32_t> samples(8, 16);
      const auto play = [&](int n) {
        for (int i = 0; i < n; ++i) rounds.see(step(workers, samples, random));
      };
      play(40);
      workers[6].per_sample = 1.2e-2;
      std::optional<cox::SlowState> last;
      for (int i = 0; i < 60; ++i) {
        play(1);
        const auto& watched = rounds.estimates.slowness.watched;
        if (!watched.empty() && watched[0].rank == cox::RankId(6)) last = watched[0].state;
      }
      suspected += last == cox::SlowState::suspected;
      const cox::SlowRank* const slow = cox::find_slow(rounds.estimates, cox::RankId(6));
      REQUIRE(slow != nullptr);
      CHECK(slow->state == cox::SlowState::confirmed);
      CHECK(slow->course == cox::SlowCourse::persistent);
      covered += slow->slowdown_low <= 1.2 && 1.2 <= slow->slowdown_high;
      workers[6].per_sample = 1e-2;
      play(80);
      REQUIRE(cox::find_slow(rounds.estimates, cox::RankId(6)) == nullptr);
      const auto& watched = rounds.estimates.slowness.watched;
      const auto gone = std::ranges::find(watched, cox::RankId(6), &cox::SlowRank::rank);
      REQUIRE(gone != watched.end());
      CHECK(gone->state == cox::SlowState::recovered);
      CHECK(gone->course == cox::SlowCourse::persistent);
      CHECK(std::abs(static_cast<double>(gone->until.value()) - 100) <= 20);
    }
    MESSAGE("intervals that hold the true size: " << covered << " of 200");
    CHECK(covered >= 180);
    CHECK(suspected >= 100);  // the other runs were confirmed at once
  }

  TEST_CASE("times of zero and absurd times give finite levels") {
    for (const double odd : {0.0, 1e-30, 1e30}) {
      Rounds rounds(4);
      rounds.see({worker(0, 0, 1), worker(1, 0, 1), worker(2, 0, 1), worker(3, odd, odd)});
      for (std::size_t c = 0; c < cox::kChannels; ++c) {
        for (const double level : rounds.level(c)) CHECK(std::isfinite(level));
      }
    }
  }

  TEST_CASE("of two ranks only what the other did not suffer counts") {
    Rounds rounds(2);
    const auto moved = [&](double a, double b) {
      Rounds next = rounds;
      const std::vector<double> before = next.level(0);
      next.see({worker(0, 0, a), worker(1, 0, b)});
      return std::vector{next.level(0)[0] - before[0], next.level(0)[1] - before[1]};
    };
    for (int i = 0; i < 50; ++i) rounds.see({worker(0, 0, 2), worker(1, 0, 4)});
    const auto both = moved(4, 8);
    CHECK(both[0] == doctest::Approx(0).epsilon(1e-6));
    CHECK(both[1] == doctest::Approx(0).epsilon(1e-6));
    const auto one = moved(2, 8);
    CHECK(one[1] > 0.6 / 8);
    CHECK(one[0] < 0);
  }

  TEST_CASE("of two ranks one stays slow while a plan makes the work of both shorter") {
    cox::testing::Random random(6);
    Rounds rounds(2);
    std::vector<Worker> workers(2);
    const auto play = [&](int n) {
      for (int i = 0; i < n; ++i) rounds.see(step(workers, {32, 32}, random));
      return cox::find_slow(rounds.estimates, cox::RankId(1));
    };
    const auto work_takes = [&](double seconds, double slowdown) {
      workers[0].per_sample = seconds;
      workers[1].per_sample = seconds * slowdown;
    };
    REQUIRE(play(60) == nullptr);
    work_takes(1e-3, 2);
    REQUIRE(play(40) != nullptr);
    work_takes(0.5e-3, 2);  // the original time
    for (int i = 0; i < 400; ++i) REQUIRE(play(1) != nullptr);
    work_takes(0.5e-3, 1);
    CHECK(play(60) == nullptr);
    work_takes(1e-3, 1);
    for (int i = 0; i < 200; ++i) REQUIRE(play(1) == nullptr);
    CHECK(cox::find_slow(rounds.estimates, cox::RankId(0)) == nullptr);
    work_takes(1e-3, 1.3);
    CHECK(play(60) != nullptr);
  }

  TEST_CASE(
      "of two ranks one that is slow from the start is named, however many steps a round has") {
    for (const std::uint32_t steps : {1u, 2u, 5u}) {
      INFO(steps);
      cox::testing::Random random(7);
      Rounds rounds(2);
      bool is_named = false;
      for (int i = 0; i < 200 && !is_named; ++i) {
        std::vector<cox::RankSignal> reports =
            step({{.per_sample = 5e-3}, {.per_sample = 1e-3}}, {4 * steps, 4 * steps}, random);
        for (cox::RankSignal& report : reports) report.rounds = steps;
        rounds.round += steps - 1;
        const auto& slow = rounds.see(reports).slowness.slow;
        is_named = slow.size() == 1 && slow[0].state == cox::SlowState::confirmed;
      }
      CHECK(is_named);
    }
  }

  TEST_CASE("a rank with more samples is not slow, whatever a step costs beside them") {
    for (const std::int32_t ranks : {2, 4, 80}) {
      for (const double fixed : {0.0, 0.005, 0.016}) {
        CAPTURE(ranks);
        CAPTURE(fixed);
        cox::testing::Random random(7);
        Rounds rounds(ranks);
        rounds.job.capabilities.shares = true;
        rounds.job.global_batch = 16 * static_cast<std::uint64_t>(ranks);
        const std::vector<Worker> workers(static_cast<std::size_t>(ranks), {.fixed = fixed});
        std::vector<std::uint32_t> samples(workers.size(), 16);
        for (int i = 0; i < 300; ++i) {
          if (i == 100) samples[0] = 32, samples[1] = 8;
          if (i == 200) samples[0] = 4, samples[1] = 16;
          rounds.see(step(workers, samples, random));
          REQUIRE(rounds.estimates.slowness.slow.empty());
        }
      }
    }
  }

  TEST_CASE("a rank stays slow while a smaller share hides it, and is not when it has recovered") {
    for (const std::int32_t ranks : {2, 4}) {
      CAPTURE(ranks);
      cox::testing::Random random(8);
      Rounds rounds(ranks);
      rounds.job.capabilities.shares = true;
      rounds.job.global_batch = 32 * static_cast<std::uint64_t>(ranks);
      std::vector<Worker> workers(static_cast<std::size_t>(ranks));
      std::vector<std::uint32_t> samples(workers.size(), 32);
      const auto play = [&](int n) {
        for (int i = 0; i < n; ++i) rounds.see(step(workers, samples, random));
        return cox::find_slow(rounds.estimates, cox::RankId(1));
      };
      REQUIRE(play(60) == nullptr);
      workers[1].per_sample *= 2;
      REQUIRE(play(20) != nullptr);
      samples[1] = 16;
      const cox::SlowRank* const slow = play(100);
      REQUIRE(slow != nullptr);
      CHECK(slow->phase() == Phase::forward);
      CHECK(slow->slowdown_ratio == doctest::Approx(2).epsilon(0.1));
      CHECK(slow->since.value() >= 60);
      CHECK(slow->since.value() <= 63);
      workers[1].per_sample /= 2;
      CHECK(play(40) == nullptr);
      CHECK(cox::slowdown_ratio(rounds.estimates, cox::RankId(1)) <= 1.05);
      CHECK(rounds.estimates.slowness.slow.empty());
    }
  }

  TEST_CASE("a rank whose share shrinks while it is only suspected is confirmed all the same") {
    cox::testing::Random random(12);
    Rounds rounds(4);
    rounds.job.capabilities.shares = true;
    rounds.job.global_batch = 128;
    std::vector<Worker> workers(4);
    std::vector<std::uint32_t> samples(4, 32);
    for (int i = 0; i < 60; ++i) rounds.see(step(workers, samples, random));
    workers[2].per_sample *= 2;
    const cox::Slowness& slowness = rounds.estimates.slowness;
    const auto is_suspected = [&] {
      return std::ranges::any_of(slowness.watched, [](const cox::SlowRank& one) {
        return one.rank == cox::RankId(2) && one.state == cox::SlowState::suspected;
      });
    };
    for (int i = 0; i < 20 && !is_suspected(); ++i) rounds.see(step(workers, samples, random));
    REQUIRE(is_suspected());
    samples = {37, 37, 16, 38};
    for (int i = 0; i < 40; ++i) rounds.see(step(workers, samples, random));
    const cox::SlowRank* const slow = cox::find_slow(rounds.estimates, cox::RankId(2));
    REQUIRE(slow != nullptr);
    CHECK(slow->slowdown_ratio == doctest::Approx(2).epsilon(0.1));
  }

  TEST_CASE("a rank without a share of the batch is compared with nobody") {
    cox::testing::Random random(3);
    Rounds rounds(4);
    rounds.job.capabilities.shares = true;
    rounds.job.global_batch = 48;
    for (int i = 0; i < 50; ++i) rounds.see(step(std::vector<Worker>(4), {16, 16, 16, 0}, random));
    CHECK(rounds.estimates.slowness.reports[3] == 0);
    CHECK(rounds.estimates.slowness.reports[0] == 50);
  }

  TEST_CASE("seconds per sample are learnt where the plan divides the batch, and nowhere else") {
    for (const bool divides : {true, false}) {
      cox::testing::Random random(3);
      Rounds rounds(3);
      rounds.job.capabilities.shares = divides;
      rounds.job.global_batch = 48;
      std::vector<Worker> workers = {{1e-3}, {2e-3}, {4e-3}};
      for (int i = 0; i < 50; ++i) rounds.see(step(workers, {16, 16, 16}, random));
      const cox::Speeds& speeds = rounds.estimates.speeds;
      REQUIRE(speeds.ranks.size() == (divides ? 3 : 0));
      for (std::size_t r = 0; r < speeds.ranks.size(); ++r) {
        CHECK(cox::seconds_per_sample(speeds, r) ==
              doctest::Approx(workers[r].per_sample).epsilon(0.02));
        CHECK(cox::level_deviation(speeds, r) < 0.01);
      }
      CHECK(speeds.changing == 0);
    }
  }

  TEST_CASE("a restored estimate goes on, and one of another world size starts anew") {
    cox::testing::Random random(6);
    Rounds rounds(4);
    rounds.job.capabilities.shares = true;
    rounds.job.global_batch = 64;
    std::vector<Worker> workers(4);
    workers[3].per_sample = 2e-3;
    const std::vector<std::uint32_t> samples(4, 16);
    for (int i = 0; i < 120; ++i) rounds.see(step(workers, samples, random));
    const std::string bytes = cox::encode_state(rounds.estimates);
    auto restored = cox::PolicyState::from_bytes(bytes).take_or_fresh<cox::Estimates>();
    REQUIRE(cox::encode_state(restored) == bytes);
    rounds.estimates = cox::after_restart(std::move(restored), rounds.job);
    CHECK(rounds.estimates.speeds.ranks[3].seen == 0);
    CHECK(rounds.estimates.speeds.ranks[3].reports == 1);
    rounds.round = 0;
    rounds.see(step(workers, samples, random));
    CHECK(cox::find_slow(rounds.estimates, cox::RankId(3)) != nullptr);
    Rounds other(5);
    other.estimates = rounds.estimates;
    workers.resize(5);
    other.see(step(workers, std::vector<std::uint32_t>(5, 16), random));
    CHECK(other.estimates.slowness.slow.empty());
    CHECK(other.estimates.slowness.reports == std::vector<double>(5, 1.0));
  }

  TEST_CASE("estimates of any numbers are read or refused, never trusted") {
    cox::testing::Random random(5);
    Rounds rounds(4);
    rounds.job.capabilities.shares = true;
    rounds.job.global_batch = 64;
    std::vector<Worker> workers(4);
    workers[3].per_sample = 2e-3;
    const std::vector<std::uint32_t> samples(4, 16);
    for (int i = 0; i < 40; ++i) rounds.see(step(workers, samples, random));
    const std::string good = cox::encode_state(rounds.estimates);
    for (int i = 0; i < 5000; ++i) {
      std::string bytes = good;
      for (std::uint64_t n = 1 + random.below(6); n > 0; --n) {
        bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
      }
      Rounds again = rounds;
      again.estimates = cox::PolicyState::from_bytes(bytes).take_or_fresh<cox::Estimates>();
      for (int k = 0; k < 12; ++k) again.see(step(workers, samples, random));
      for (const cox::RankSpeed& rank : again.estimates.speeds.ranks) {
        REQUIRE(std::isfinite(rank.level));
      }
      for (const cox::SlowRank& slow : again.estimates.slowness.slow) {
        REQUIRE(slow.rank.value() < 4);
        REQUIRE(slow.phase_index < cox::kOwnPhases.size());
      }
    }
  }
}
