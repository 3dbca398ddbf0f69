// Laws of policy `shares` in a closed loop: through decide(), with plans in flight and late plans.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/shares_job.h"

#include <doctest/doctest.h>

namespace {

using cox::Config;
using cox::ReasonCode;
using cox::test::SharesJob;
using cox::test::SharesScenario;
using cox::testing::Random;
using Speeds = std::vector<double>;

Config config() {
  Config config;
  config.shares.mode = cox::PolicyMode::on;
  return config;
}

SharesScenario scenario(std::uint64_t seed, const Speeds& speeds) {
  SharesScenario scenario;
  scenario.seed = seed;
  scenario.ranks = static_cast<std::int32_t>(speeds.size());
  scenario.global_batch = 64 * speeds.size();
  scenario.speed = [speeds](std::int32_t rank, std::uint64_t) {
    return speeds[static_cast<std::size_t>(rank)];
  };
  return scenario;
}

// Returns the rounds until the step stays within 5 % of the best one.
int rounds_to_settle(SharesJob& job, int rounds) {
  int settled = 0;
  for (int i = 0; i < rounds; ++i) {
    job.round();
    if (job.over_ideal() > 1.05) settled = i + 1;
  }
  return settled;
}

int count(const SharesJob& job, ReasonCode code) {
  const auto& reasons = job.reasons();
  return static_cast<int>(
      std::count_if(reasons.begin(), reasons.end(), [&](const auto& r) { return r.code == code; }));
}

// Speeds of every rank in every round: constant, then steps by half and more, one rank at a time.
struct Steps {
  static constexpr std::uint64_t kApart = 300;
  std::vector<Speeds> of_stage;

  explicit Steps(std::uint64_t seed) {
    Random random(seed);
    Speeds now = {1, 1, 2, 4};
    for (int stage = 0; stage < 20; ++stage) {
      of_stage.push_back(now);
      double& changed = now[random.below(4)];
      const double ratio = std::exp(0.25 + random.uniform());
      const bool speeds_up = changed < 0.4 || (changed < 3 && random.chance(0.5));
      changed *= speeds_up ? ratio : 1 / ratio;
    }
  }
  double operator()(std::int32_t rank, std::uint64_t round) const {
    const auto stage = std::min<std::size_t>(round / kApart, of_stage.size() - 1);
    return of_stage[stage][static_cast<std::size_t>(rank)];
  }
};

// Gives every rank its own long-lasting speed, then steps or ramps to another.
std::vector<Speeds> drifting_speeds(std::uint64_t seed, std::size_t ranks, std::size_t rounds) {
  Random random(seed);
  std::vector<Speeds> speeds(ranks);
  for (Speeds& mine : speeds) {
    const double base = 1 + 2 * random.uniform();
    double now = base;
    mine.assign(random.below(rounds), now);
    while (mine.size() < rounds) {
      const double next = base * std::exp(0.3 * random.normal());
      const std::size_t ramp = random.chance(0.5) ? 1 : 200 + random.below(800);
      for (std::size_t i = 1; i <= ramp; ++i) {
        mine.push_back(now + (next - now) * static_cast<double>(i) / static_cast<double>(ramp));
      }
      now = next;
      mine.insert(mine.end(), rounds / 2 + random.below(rounds), now);
    }
  }
  return speeds;
}

}  // namespace

TEST_SUITE("sim") {
  TEST_CASE("ranks at 1:1:2:4 are within 5 % of the ideal after 20 steps, by one change") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      for (const std::uint64_t micro_batch : {0, 4}) {
        SharesScenario of = scenario(seed, {1, 1, 2, 4});
        of.micro_batch = micro_batch;
        if (micro_batch > 0) of.global_batch *= 2;
        SharesJob job(of, config());
        CAPTURE(seed);
        CHECK(rounds_to_settle(job, 40) <= 20);
        for (int i = 0; i < 10000; ++i) job.round();
        CHECK(job.reshares() == 1);
        CHECK(job.over_ideal() <= 1.05);
      }
    }
  }

  TEST_CASE("every change of speed is followed within 20 steps, by one change of shares at most") {
    int reshares = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const Steps steps(seed);
      SharesScenario of = scenario(seed, {1, 1, 2, 4});
      of.speed = steps;
      SharesJob job(of, config());
      for (int i = 1; i < 300; ++i) job.round();
      for (std::size_t stage = 1; stage < steps.of_stage.size(); ++stage) {
        const int before = job.reshares();
        CAPTURE(seed);
        CAPTURE(stage);
        CHECK(rounds_to_settle(job, 300) <= 20);
        CHECK(job.reshares() - before <= 1);
      }
      reshares += job.reshares();
    }
    CHECK(reshares > 150);
  }

  TEST_CASE("64 ranks whose speeds step and ramp get 98 % of what a clairvoyant would") {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      const auto speeds = drifting_speeds(seed, 64, 6000);
      SharesScenario of = scenario(seed, Speeds(64, 1));
      of.global_batch = 64 * 32;
      of.speed = [&](std::int32_t rank, std::uint64_t round) {
        return speeds[static_cast<std::size_t>(rank)][round];
      };
      SharesJob job(of, config());
      for (int i = 1; i < 6000; ++i) job.round();
      MESSAGE("part of the clairvoyant's throughput: ", job.throughput_ratio(),
              ", changes: ", job.reshares());
      CHECK(job.throughput_ratio() >= 0.98);
      CHECK(job.reshares() > 5);
    }
  }

  TEST_CASE("noise moves no share of 64 ranks in 10,000 rounds, common noise and pauses neither") {
    Speeds speeds;
    for (int r = 0; r < 64; ++r) speeds.push_back(1 + 0.03 * r);
    SharesScenario of = scenario(7, speeds);
    of.global_batch = 64 * 32;
    of.common_noise = 0.02;
    of.pauses = 0.01;
    SharesJob job(of, config());
    for (int i = 0; i < 10000; ++i) job.round();
    CHECK(job.reshares() == 1);
    CHECK(job.over_ideal() < 1.05);
  }

  TEST_CASE("what a step costs beside its samples is learnt once, then one change is enough") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SharesScenario of = scenario(seed, {1, 1, 2, 4});
      of.fixed_seconds = 0.25 * 64 * of.unit_seconds;
      of.speed = [](std::int32_t rank, std::uint64_t round) {
        const Speeds speeds = {1, 1, 2, 4};
        return speeds[static_cast<std::size_t>(round < 500 ? rank : 3 - rank)];
      };
      SharesJob job(of, config());
      for (int i = 1; i < 500; ++i) job.round();
      CHECK(job.reshares() <= 2);
      CHECK(job.over_ideal() <= 1.05);
      const int before = job.reshares();
      CHECK(rounds_to_settle(job, 500) <= 20);
      CHECK(job.reshares() - before == 1);
    }
  }

  TEST_CASE("reports and plans that come late cost time, not stability") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SharesScenario of = scenario(seed, {1, 1, 2, 4});
      of.missing = 0.2;
      of.delay_rounds = 10;
      SharesJob job(of, config());
      CHECK(rounds_to_settle(job, 60) <= 40);
      for (int i = 0; i < 3000; ++i) job.round();
      CHECK(job.reshares() == 1);
    }
  }

  TEST_CASE("a rank never takes more samples than its memory holds, and the reason says so") {
    SharesScenario of = scenario(1, {1, 1, 2, 4});
    of.memory_limit[3] = 5000 + 100 * 1000;  // the best shares would give the rank 128 samples
    SharesJob job(of, config());
    for (int i = 0; i < 600; ++i) {
      job.round();
      REQUIRE(job.units()[3] <= 100);
    }
    CHECK(job.units()[3] > 80);
    REQUIRE(count(job, ReasonCode::shares_limited) == 1);
    const auto& reasons = job.reasons();
    const auto limited = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) {
      return r.code == ReasonCode::shares_limited;
    });
    CHECK(limited->text.find("rank 3 is held to ") != std::string::npos);
  }

  TEST_CASE("the hint is where shares start, and a wrong one is put right") {
    Config hinted = config();
    hinted.shares.hint = {{2, 2}, {3, 4}};
    SharesJob right(scenario(1, {1, 1, 2, 4}), hinted);
    CHECK(right.active().shares == std::vector<std::uint32_t>{32, 32, 64, 128});
    CHECK(rounds_to_settle(right, 300) == 0);
    CHECK(right.reshares() == 0);
    SharesJob wrong(scenario(1, {4, 2, 1, 1}), hinted);
    CHECK(rounds_to_settle(wrong, 300) <= 20);
    CHECK(wrong.reshares() == 1);
  }

  TEST_CASE("the same reports give the same decisions again, in any order of arrival") {
    const Steps steps(3);
    SharesScenario of = scenario(3, {1, 1, 2, 4});
    of.speed = steps;
    of.missing = 0.05;
    SharesJob job(of, config());
    SharesJob again(of, config());
    for (int i = 0; i < 1200; ++i) {
      const cox::Decision first = job.round();
      std::vector<cox::RankSignal> arrived = again.reports();
      std::reverse(arrived.begin(), arrived.end());
      const cox::Decision second = again.decide_on(arrived);
      REQUIRE(first.plan == second.plan);
      REQUIRE(first.reasons == second.reasons);
      REQUIRE(job.state().policies == again.state().policies);
    }
    CHECK(job.reshares() >= 3);
  }
}
