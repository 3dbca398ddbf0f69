// A thousand decisions in simulated jobs: measured effects against the truth, and decisions taken
// back.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/testing/steered_job.h"

#include <doctest/doctest.h>

namespace {

using cox::Effect;
using cox::Reason;
using cox::ReasonCode;
using cox::Verdict;
using cox::testing::PaceNoise;
using cox::testing::Random;
using cox::testing::SteeredJob;
using cox::testing::SteeredScenario;

// Promises in every round, from a given one on, that all blocks are a tenth faster in bf16.
class Optimist final : public cox::Policy {
 public:
  explicit Optimist(cox::RoundId from, cox::Motive motive = cox::Motive::gain)
      : from_(from), motive_(motive) {}
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "optimist"; }
  cox::PolicyOutput propose(const cox::PolicyInput& input, cox::PolicyState state) const override {
    cox::PolicyOutput output;
    output.state = std::move(state);
    const bool is_done = input.plan.precision[0] == cox::Precision::bf16;
    if (input.summary.round < from_ || is_done) return output;
    Reason reason = cox::reason_of(ReasonCode::custom, "all blocks go to bf16");
    reason.forecast = cox::forecast_of_time(0.9, 0.01);
    const auto blocks = static_cast<std::uint16_t>(input.job.blocks.size());
    output.proposals.push_back(
        {cox::SetPrecision{cox::BlockId(0), cox::Precision::bf16, blocks}, reason, motive_});
    return output;
  }

 private:
  cox::RoundId from_;
  cox::Motive motive_;
};

cox::JobFacts plain_job() {
  cox::JobFacts job;
  job.name = "promises";
  job.incarnation = 1;
  job.world_size = 4;
  job.blocks = {"h.0", "h.1", "head"};
  job.capabilities = {0xF, cox::kEveryAction, true, true, true};
  return job;
}

SteeredScenario planted(std::uint64_t seed, double ratio, const PaceNoise& noise) {
  SteeredScenario scenario;
  scenario.seed = seed;
  scenario.sync_seconds = 0;
  scenario.noise = noise;
  scenario.truth = [ratio](const cox::Plan& plan) {
    return plan.precision[0] == cox::Precision::bf16 ? ratio : 1.0;
  };
  return scenario;
}

// Returns one of five kinds of noise: independent, heavy-tailed, with pauses, or correlated with
// the step before.
PaceNoise noise_of_kind(std::uint64_t kind) {
  PaceNoise noise;
  noise.rank = kind % 2 == 0 ? 0.03 : 0.02;
  noise.common = 0.02;
  noise.heavy_tails = kind == 1 || kind == 3;
  noise.pauses = kind >= 2 ? 0.005 : 0;
  noise.correlation = kind == 4 ? 0.5 : kind == 3 ? 0.3 : 0;
  return noise;
}

SteeredJob optimistic_job(const SteeredScenario& scenario, cox::Motive motive = cox::Motive::gain) {
  return {scenario, plain_job(), {}, {std::make_shared<Optimist>(cox::RoundId(80), motive)}};
}

const Effect* first_change(const SteeredJob& job) {
  for (const auto& effect : *job.last().effects) {
    if (effect->reason.policy == cox::PolicyKind::custom && effect->plan) return effect.get();
  }
  return nullptr;
}

std::size_t count_said(const SteeredJob& job, ReasonCode code) {
  return static_cast<std::size_t>(std::count_if(
      job.said().begin(), job.said().end(), [code](const Reason& r) { return r.code == code; }));
}

}  // namespace

TEST_SUITE("testing.promises") {
  TEST_CASE("a thousand decisions: intervals hold the truth, and harm is taken back") {
    Random random(2019);
    std::map<std::string, int> counts;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const bool is_harmful = i % 2 == 0;
      const double ratio =
          is_harmful ? 1.06 + 0.34 * random.uniform() : 0.99 - 0.29 * random.uniform();
      SteeredJob job = optimistic_job(planted(7000 + i, ratio, noise_of_kind(i / 2 % 5)));
      job.rounds(160);
      const Effect* const effect = first_change(job);
      REQUIRE(effect != nullptr);
      REQUIRE(effect->measured.is_known());
      REQUIRE(effect->verdict != Verdict::measuring);
      counts["held"] += effect->measured.low <= ratio && ratio <= effect->measured.high;
      counts["harmful back"] += is_harmful && effect->is_taken_back;
      counts["helpful back"] += !is_harmful && effect->is_taken_back;
      counts["helped"] += !is_harmful && effect->verdict == Verdict::helped;
    }
    MESSAGE("intervals with the truth: " << counts["held"] << " of 1000; taken back: "
                                         << counts["harmful back"] << " of 500 harmful, "
                                         << counts["helpful back"] << " of 500 helpful; "
                                         << counts["helped"] << " of 500 found to help");
    CHECK(counts["held"] >= 930);
    CHECK(counts["held"] <= 970);
    CHECK(counts["harmful back"] >= 495);
    CHECK(counts["helpful back"] <= 5);
    CHECK(counts["helped"] >= 450);
  }

  TEST_CASE("what did not help is taken back in a plan of its own, told with numbers, and rests") {
    SteeredJob job = optimistic_job(planted(5, 1.2, noise_of_kind(0)));
    job.rounds(160);
    CHECK(job.active().precision[0] == cox::Precision::fp32);
    CHECK(job.active().id.number == 2);
    const auto back = std::find_if(job.said().begin(), job.said().end(), [](const Reason& r) {
      return r.code == ReasonCode::taken_back;
    });
    REQUIRE(back != job.said().end());
    CAPTURE(back->text);
    CHECK(back->policy == cox::PolicyKind::none);
    CHECK(back->outcome == cox::Outcome::changed);
    CHECK(back->text.find("plan 1 is taken back in precision: a step was to take 10.0 % less") ==
          0);
    CHECK(back->text.find(
              "policy optimist may not propose this change for a shorter step before round ") !=
          std::string::npos);
    CHECK(back->forecast.step_ratio == doctest::Approx(1 / 1.2).epsilon(0.03));
    // The policy asks again in every round; the refusal is reported once.
    CHECK(count_said(job, ReasonCode::resting) == 1);
    REQUIRE_FALSE(job.last().scores.empty());
    CHECK(job.last().scores.back().policy == cox::PolicyKind::custom);
    CHECK(job.last().scores.back().taken_back == 1);
    CHECK(job.last().scores.back().seconds_lost > 0);
    job.rounds(512);  // the policy tries once more, with the same result
    CHECK(count_said(job, ReasonCode::taken_back) == 2);
    job.rounds(800);
    CHECK(count_said(job, ReasonCode::taken_back) == 2);
    CHECK(count_said(job, ReasonCode::resting) == 2);
  }

  TEST_CASE("necessities are never taken back, however much they cost") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SteeredJob job =
          optimistic_job(planted(seed, 1.1 + 0.1 * static_cast<double>(seed), noise_of_kind(0)),
                         cox::Motive::necessity);
      job.rounds(300);
      CHECK(count_said(job, ReasonCode::taken_back) == 0);
      CHECK(job.active().precision[0] == cox::Precision::bf16);
      CHECK(first_change(job)->verdict == Verdict::none);
      CHECK(first_change(job)->measured.low > 1);
    }
  }

  TEST_CASE("a policy that only observes changes nothing, and nothing of it is taken back") {
    cox::Config config;
    config.policy_modes["optimist"] = cox::PolicyMode::observe;
    SteeredJob job(planted(5, 1.3, noise_of_kind(0)), plain_job(), config,
                   {std::make_shared<Optimist>(cox::RoundId(80))});
    job.rounds(300);
    CHECK(job.active().id.number == 0);
    CHECK(count_said(job, ReasonCode::taken_back) == 0);
  }

  TEST_CASE("what would not fit a rank's memory any more stays, with a reason") {
    SteeredScenario scenario = planted(5, 1.2, noise_of_kind(0));
    cox::JobFacts facts = plain_job();
    cox::MemoryModel model;
    model.front = {{950, 0, std::vector(3, cox::MemoryAction::keep)}};
    model.step_us = 100000;
    facts.memory.models = {model};
    facts.memory.limit_bytes.assign(4, 1000);
    SteeredJob job(scenario, facts, {}, {std::make_shared<Optimist>(cox::RoundId(80))});
    job.rounds(300);
    CHECK(count_said(job, ReasonCode::taken_back) == 0);
    REQUIRE(count_said(job, ReasonCode::take_back_stays) == 1);
    CHECK(job.active().precision[0] == cox::Precision::bf16);
  }

  TEST_CASE("deciding again on the same signals from saved states gives the same plans") {
    // Encodes and decodes the state every 40 rounds, as a save does.
    const auto play = [](bool saves) {
      SteeredJob job = optimistic_job(planted(9, 1.2, noise_of_kind(3)));
      std::string said;
      for (int i = 0; i < 900; ++i) {
        if (saves && i % 40 == 0) job.save_and_restore();
        for (const Reason& reason : job.round().reasons) said += reason.text + "\n";
      }
      return said + cox::text(job.state().plan);
    };
    const std::string straight = play(false);
    CHECK(straight.find("taken back") != std::string::npos);
    CHECK(play(true) == straight);
  }
}
