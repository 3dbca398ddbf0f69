// Policy `accumulation` in whole jobs on a virtual clock: changes of the network, noise, pauses,
// replay.
#include <algorithm>
#include <cmath>
#include <string>

#include "coordinator/policies/shares/shares.h"
#include "tests/policies/accumulation_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using test::accumulation_job;
using test::SimulatedAccumulation;

TEST_SUITE("policies.accumulation") {
  TEST_CASE(
      "a network four times as slow costs one change of the batch, and one when it recovers") {
    for (const double noise : {0.0, 0.03}) {
      CAPTURE(noise);
      SimulatedAccumulation run("");
      run.noise_ratio = noise;
      run.sync_seconds = 0.004;
      run.rounds(200);
      CHECK(run.batches == 1);
      const std::uint64_t before = run.total();
      run.sync_seconds = 0.016;
      const std::uint64_t at = run.now;
      while (run.batches == 1 && run.now < at + 100) run.rounds(1);
      CHECK(run.now <= at + 32);  // half of the observed rounds, with a margin
      run.rounds(300);
      CHECK(run.batches <= 3);  // the first change may use rounds of both speeds
      CHECK(run.total() > 3 * before);
      CHECK(run.total() < 5 * before);
      CHECK(run.overhead < 0.11);
      const int settled = run.batches;
      run.sync_seconds = 0.004;
      run.rounds(300);
      CHECK(run.batches <= settled + 2);
      CHECK(run.batches > settled);
      CHECK(run.total() <= 2 * before);
    }
  }

  TEST_CASE("noise of three percent makes no change, wherever the cost lies, beyond the first") {
    int changes = 0;
    for (int i = 0; i < 60; ++i) {
      SimulatedAccumulation run("");
      run.random = testing::Random(static_cast<std::uint64_t>(100 + i));
      run.noise_ratio = 0.03;
      run.sync_seconds = 0.0002 * std::pow(1.15, i % 30);  // 2 % .. 54 % of a step at the start
      run.rounds(60);
      const int settled = run.batches;
      CHECK(settled <= 2);
      run.rounds(600);
      CHECK(run.batches <= settled + 1);
      CHECK(run.said_with(ReasonCode::accumulation_lowered).empty());
      changes += run.batches - settled;
    }
    MESSAGE("changes after the first 60 rounds, of 60 jobs x 600 rounds: " << changes);
    CHECK(changes <= 3);
  }

  TEST_CASE("noise of three percent at the edge of shrinking does not make the batch swing") {
    for (int i = 0; i < 20; ++i) {
      SimulatedAccumulation run("");
      run.random = testing::Random(static_cast<std::uint64_t>(500 + i));
      run.sync_seconds = 0.01;
      run.rounds(30);
      REQUIRE(run.total() == 40);
      run.noise_ratio = 0.03;
      run.sync_seconds = 0.0100 * (0.50 + 0.01 * i);  // close to half of the original time
      run.rounds(800);
      CHECK(run.batches <= 2);
      CHECK(run.said_with(ReasonCode::accumulation_raised).size() == 1);
    }
  }

  TEST_CASE("pauses of single steps, in work or in the network, change nothing") {
    SimulatedAccumulation run("");
    run.sync_seconds = 0.005;
    run.rounds(40);
    REQUIRE(run.batches == 1);
    for (int i = 0; i < 200; ++i) {
      const bool pause = i % 10 == 0;
      run.sync_seconds = pause && i % 20 == 0 ? 0.5 : 0.005;
      run.micro_seconds = pause && i % 20 != 0 ? 0.5 : 0.01;
      run.rounds(1);
    }
    CHECK(run.batches == 1);
  }

  TEST_CASE("with policy shares the batch grows and divides by speed, and both come to rest") {
    struct {
      std::vector<double> slowness;
      double noise;
      std::uint64_t least, most;  // final micro-batches of a step
    } const table[] = {{{1, 1, 0.5, 0.25}, 0, 72, 88},
                       {{1, 1, 0.5, 0.25}, 0.03, 68, 96},
                       {{1, 1, 1, 1}, 0.03, 36, 48},
                       {{3, 1, 1, 1}, 0.03, 90, 110}};
    for (const auto& row : table) {
      SimulatedAccumulation run("shares.mode = on", accumulation_job(),
                                {std::make_shared<SharesPolicy>()});
      run.slowness = row.slowness;
      run.noise_ratio = row.noise;
      run.sync_seconds = 0.01 * *std::max_element(row.slowness.begin(), row.slowness.end());
      run.rounds(150);
      CAPTURE(row.noise);
      CHECK(run.batches <= 3);
      const std::uint64_t settled = run.state.plan.id.number;
      run.rounds(300);
      CHECK(run.state.plan.id.number <= settled + 1);
      CHECK(run.total() >= row.least);
      CHECK(run.total() <= row.most);
      CHECK(run.overhead <= 0.115);
    }
  }

  TEST_CASE("an observing policy says what it would do and leaves the batch alone") {
    SimulatedAccumulation run("accumulation.mode = observe");
    run.sync_seconds = 0.01;
    run.rounds(50);
    CHECK(run.batches == 0);
    const auto said = run.said_with(ReasonCode::accumulation_raised);
    REQUIRE(said.size() == 1);
    CHECK(said[0].outcome == Outcome::observed);
  }

  TEST_CASE("whatever is measured, plans stay valid and within floor and cap") {
    for (int i = 0; i < 200; ++i) {
      testing::Random random(static_cast<std::uint64_t>(i));
      JobFacts job = accumulation_job();
      job.world_size = static_cast<std::int32_t>(1 + random.below(6));
      job.micro_batch = 1 + random.below(9);
      job.global_batch = random.below(60);
      const std::uint64_t least = 1 + random.below(4);
      const std::uint64_t most = least + random.below(20);
      SimulatedAccumulation run("accumulation.min_anchor = " + std::to_string(least) +
                                    "\naccumulation.max_anchor = " + std::to_string(most) +
                                    "\nshares.mode = " + (random.chance(0.5) ? "on" : "off"),
                                job);
      for (double& slowness : run.slowness) slowness = 0.25 + 2 * random.uniform();
      run.noise_ratio = 0.3 * random.uniform();
      for (int change = 0; change < 6; ++change) {
        run.sync_seconds = std::pow(10, -5 + 5 * random.uniform());
        run.optimizer_seconds = 0.01 * random.uniform();
        run.rounds(25);
        REQUIRE(validate(run.state.plan, job).ok());
        const auto world = static_cast<std::uint64_t>(job.world_size);
        const std::uint64_t own = (job.global_batch + job.micro_batch - 1) / job.micro_batch;
        CHECK(run.total() >= std::max(own, least));
        CHECK(run.total() <= std::max(own, most * world * 12));
      }
    }
  }

  TEST_CASE("the same signals give the same plans, reasons and state") {
    const auto settings = "shares.mode = on\naccumulation.settle_rounds = 5";
    SimulatedAccumulation run(settings);
    SimulatedAccumulation again(settings);
    run.noise_ratio = 0.05;
    run.slowness = {1, 0.9, 0.5, 0.3};
    int plans = 0;
    for (int i = 0; i < 300; ++i) {
      if (i % 60 == 0) run.sync_seconds = 0.001 * (1 + 7 * (i / 60 % 3));
      const StepSignals signals = run.next_signals();
      const Decision a = run.decide_on(signals);
      const Decision b = again.decide_on(signals);
      CHECK(a.plan == b.plan);
      CHECK(a.reasons == b.reasons);
      CHECK(state_of(run.state, "accumulation") == state_of(again.state, "accumulation"));
      plans += a.plan.has_value();
    }
    CHECK(plans >= 2);
  }
}

}  // namespace
}  // namespace cox
