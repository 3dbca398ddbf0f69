// Properties of every round, for any reports.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/policies/precision/block_formats.h"
#include "coordinator/testing/random.h"
#include "tests/policies/precision_job.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

constexpr int kJobs = 100;
constexpr int kRounds = 1000;

std::string some_settings(testing::Random& random) {
  const char* formats[] = {"auto", "auto", "auto", "fp8", "bf16"};
  const char* rules[] = {"", "precision.force = h.1=fp16\n", "precision.forbid = head=fp8\n",
                         "precision.forbid = h.*=bf16\n"};
  return "precision.format = " + std::string(formats[random.below(5)]) + "\n" +
         rules[random.below(4)] + "precision.patience_rounds = 4\nprecision.dwell_rounds = " +
         std::to_string(random.below(60)) +
         "\nprecision.cooldown_rounds = " + std::to_string(random.below(40)) + "\n" +
         (random.chance(0.3) ? "precision.emulate = on\n" : "");
}

JobFacts some_job(testing::Random& random) {
  JobFacts job = precision_job();
  job.capabilities.precisions = static_cast<PrecisionSet>(1 | random.below(16));
  for (BlockFormats& block : job.precision.blocks) {
    for (std::int64_t& us : block.step_us) us = static_cast<std::int64_t>(random.below(1000));
  }
  job.precision.emulated = random.chance(0.3) ? only(Precision::fp8) : PrecisionSet{0};
  return job;
}

BlockEvidence some_evidence(testing::Random& random, double trouble) {
  if (random.chance(0.3)) return {};
  BlockEvidence evidence = good_evidence();
  const auto bad = [&] { return random.chance(trouble); };
  if (bad()) evidence.saturated = static_cast<std::uint32_t>(random.below(100));
  if (bad()) evidence.underflow = static_cast<std::uint32_t>(random.below(1000));
  if (bad()) evidence.noise_sum = static_cast<float>(8 * random.uniform());
  if (bad()) evidence.overflow_forward = 1;
  if (bad()) evidence.overflow_backward = 1;
  if (evidence.has_overflow()) evidence.rank_of_overflow = RankId(1);
  return evidence;
}

void some_report(testing::Random& random, RankSignal& report) {
  for (float& seconds : report.phase_seconds) seconds = static_cast<float>(random.uniform());
  report.loss_scale = random.chance(0.5) ? 1.0f : 1024.0f;
  if (random.chance(0.1)) report.rank = RankId(-1);
}

// Returns whether `to` is less safe than `from`.
bool is_lower(Precision from, Precision to) {
  return from != to && nearest_safe(to, only(from)) == from;
}

TEST_SUITE("policies.precision") {
  TEST_CASE("in 100000 random rounds blocks have allowed formats and dwell in them") {
    std::uint64_t lowered = 0;
    std::uint64_t raised = 0;
    for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
      testing::Random random(seed);
      SimulatedPrecisionJob run(some_job(random), some_settings(random));
      run.adjust = [&random](RankSignal& report) { some_report(random, report); };
      const double trouble = random.chance(0.5) ? 0.002 : 0.05;
      std::vector<Precision> before = run.state.plan.precision;
      std::vector<std::uint64_t> changed(before.size(), 0);
      for (int r = 0; r < kRounds; ++r) {
        for (BlockEvidence& evidence : run.evidence) evidence = some_evidence(random, trouble);
        run.play();
        const std::vector<Precision>& now = run.state.plan.precision;
        for (std::size_t b = 0; b < now.size(); ++b) {
          CAPTURE(seed);
          CAPTURE(run.round);
          const Leeway leeway = leeway_of(run.job, run.config.precision, {}, b);
          REQUIRE(contains(leeway.allowed, now[b]));
          if (now[b] == before[b]) continue;
          REQUIRE(leeway.held == Held::free);
          const bool lower = is_lower(before[b], now[b]);
          (lower ? lowered : raised) += 1;
          const bool dwelt =
              changed[b] == 0 || run.round >= changed[b] + run.config.precision.dwell_rounds;
          if (lower) REQUIRE(dwelt);
          changed[b] = run.round;
        }
        before = now;
      }
    }
    MESSAGE(lowered << " times to a lower format, " << raised << " times to a safer one");
    CHECK(lowered > 300);
    CHECK(raised > 300);
  }

  TEST_CASE("the same signals give the same formats, also from a state that was kept") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      testing::Random random(seed);
      const JobFacts job = some_job(random);
      const std::string settings = some_settings(random);
      SimulatedPrecisionJob first(job, settings);
      SimulatedPrecisionJob second(job, settings);
      for (int r = 0; r < 300; ++r) {
        for (std::size_t b = 0; b < first.evidence.size(); ++b) {
          first.evidence[b] = second.evidence[b] = some_evidence(random, 0.02);
        }
        first.play();
        for (NamedPolicyState& kept : second.state.policies) {
          kept.state = PolicyState::from_bytes(kept.state.bytes());
        }
        second.play();
        REQUIRE(first.state.plan == second.state.plan);
        REQUIRE(first.state.policies == second.state.policies);
      }
      CHECK(first.reasons == second.reasons);
    }
  }

  TEST_CASE("states that are none start anew and harm nothing") {
    testing::Random random(3);
    SimulatedPrecisionJob run(precision_job(), "precision.format = auto");
    run.play(10);
    for (int i = 0; i < 3000; ++i) {
      std::string bytes = state_of(run.state, "precision").bytes();
      for (auto hits = random.below(4); hits > 0 && !bytes.empty(); --hits) {
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      }
      if (random.chance(0.2)) bytes.resize(random.below(bytes.size() + 1));
      state_of(run.state, "precision") = PolicyState::from_bytes(bytes);
      run.play();
      REQUIRE(validate(run.state.plan, run.job).ok());
    }
  }
}

}  // namespace
}  // namespace cox::test
