// Properties of decisions in whole simulated jobs with all faults at once.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/policies/registry.h"
#include "coordinator/testing/simulated_job.h"

#include <doctest/doctest.h>

namespace {

using cox::testing::Random;
using cox::testing::Scenario;
using cox::testing::SimulatedJob;

struct Calls {
  static constexpr std::uint32_t kVersion = 1;
  std::uint64_t count = 1;
  static auto fields(auto& self) {
    return cox::message("Calls", cox::field(1, "count", self.count));
  }
};

// Proposes anything, valid or not, or throws.
class Monkey final : public cox::Policy {
 public:
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "monkey"; }
  cox::PolicyOutput propose(const cox::PolicyInput& input, cox::PolicyState state) const override {
    auto calls = state.take_or_fresh<Calls>();
    Random random(calls.count++ + 1000 * input.summary.round.value());
    if (random.chance(0.02)) throw std::runtime_error("slipped");
    cox::PolicyOutput output;
    if (random.chance(0.5)) output.proposals.push_back({change(random, input), {}});
    output.state = cox::PolicyState::of(calls);
    return output;
  }

 private:
  static cox::PlanChange change(Random& random, const cox::PolicyInput& input) {
    const cox::JobFacts& job = input.job;
    const std::uint64_t now = input.summary.round.value();
    const auto block = cox::BlockId(static_cast<std::uint16_t>(random.below(14)));
    const auto action = static_cast<cox::MemoryAction>(random.below(5));
    const std::size_t world = static_cast<std::size_t>(job.world_size) + (random.below(8) == 0);
    switch (random.below(6)) {
      case 0:
        return cox::SetPrecision{block, static_cast<cox::Precision>(random.below(5))};
      case 1:
        return cox::SetActions{
            std::vector(1 + random.below(3), std::vector(job.blocks.size(), action)),
            std::vector(world, cox::ProfileId(static_cast<std::uint16_t>(random.below(3))))};
      case 2:
        return cox::SetShares{std::vector(world, static_cast<std::uint32_t>(random.below(4)))};
      case 3:
        return cox::SetBatch{random.below(5) << 30};
      case 4:
        return cox::HoldUntil{cox::RoundId(now + random.below(6))};
      default:
        return cox::RollBack{cox::RoundId(now - random.below(now))};
    }
  }
};

cox::PolicySet policies_with_monkey() {
  cox::PolicySet policies = cox::default_policies();
  policies.push_back(std::make_shared<Monkey>());
  return policies;
}

cox::Capabilities all_but_fp8() {
  return {0b0111, 0b0011, true, true, true};
}

Scenario wild(std::uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  scenario.ranks = static_cast<std::int32_t>(1 + random.below(9));
  scenario.missing = 0.2 * random.uniform();
  scenario.duplicate = 0.2 * random.uniform();
  scenario.stale = 0.2 * random.uniform();
  scenario.damaged = 0.1 * random.uniform();
  scenario.nonfinite = 0.05 * random.uniform();
  scenario.storm_from = 200 + random.below(200);
  scenario.storm_until = scenario.storm_from + random.below(60);
  scenario.finish_from = 800;
  scenario.slowdowns = {{cox::RankId(0), cox::Phase::data, 0.5, 50, 300}};
  return scenario;
}

bool same(const cox::Decision& a, const cox::Decision& b) {
  return a.plan == b.plan && a.reasons == b.reasons;
}

}  // namespace

TEST_SUITE("decisions") {
  TEST_CASE("plans stay valid, count up by one and come one at a time, whatever goes wrong") {
    int rounds = 0;
    int plans = 0;
    for (std::uint64_t seed = 1; rounds < 10000; ++seed) {
      SimulatedJob job(wild(seed), {}, policies_with_monkey(), all_but_fp8());
      for (int i = 0; i < 1000; ++i, ++rounds) {
        const cox::Plan before = job.state().plan;
        const auto round = job.now().value();
        const cox::Decision decision = job.round();
        if (!decision.plan) continue;
        ++plans;
        REQUIRE(cox::validate(*decision.plan, job.job()) == cox::ok_status());
        REQUIRE(decision.plan->id.number == before.id.number + 1);
        REQUIRE(decision.plan->earliest_round.value() == round + 2);
        REQUIRE_FALSE(cox::same_effect(*decision.plan, before));
        REQUIRE(decision.summary.plan_applied_max == before.id.number);
        REQUIRE(job.active().id.number == before.id.number);
      }
    }
    CHECK(plans > 500);
  }

  TEST_CASE("the same state and signals give the same decision and the same next state") {
    for (std::uint64_t seed = 20; seed < 24; ++seed) {
      SimulatedJob job(wild(seed), {}, policies_with_monkey(), all_but_fp8());
      for (int i = 0; i < 300; ++i) {
        const std::vector<cox::RankSignal> arrived = job.reports();
        const cox::StepSignals signals =
            cox::collect(job.now(), 1, job.job().world_size, arrived, {}, job.clock());
        const cox::PolicySet policies = policies_with_monkey();
        const cox::Decided again = cox::decide(job.job(), {}, policies, job.state(), signals);
        const cox::Decision decision = job.decide_on(signals);
        REQUIRE(same(again.decision, decision));
        REQUIRE(again.state.plan == job.state().plan);
        REQUIRE(again.state.policies == job.state().policies);
      }
    }
  }

  TEST_CASE("the order in which reports arrive changes no decision") {
    SimulatedJob job(wild(31), {}, policies_with_monkey(), all_but_fp8());
    SimulatedJob shuffled(wild(31), {}, policies_with_monkey(), all_but_fp8());
    Random random(1);
    for (int i = 0; i < 500; ++i) {
      std::vector<cox::RankSignal> arrived = shuffled.reports();
      for (std::size_t k = arrived.size(); k > 1; --k) {
        std::swap(arrived[k - 1], arrived[random.below(k)]);
      }
      const cox::StepSignals signals =
          cox::collect(shuffled.now(), 1, job.job().world_size, arrived, {}, shuffled.clock());
      REQUIRE(same(job.round(), shuffled.decide_on(signals)));
    }
    CHECK(job.state().policies == shuffled.state().policies);
  }

  TEST_CASE("reports of random bytes, sealed or not, never stop a decision") {
    Random random(77);
    SimulatedJob job(wild(41), {}, policies_with_monkey(), all_but_fp8());
    for (int i = 0; i < 1000; ++i) {
      std::vector<cox::RankSignal> arrived = job.reports();
      for (cox::RankSignal& report : arrived) {
        if (!random.chance(0.3)) continue;
        const cox::RankSignal sound = report;
        for (std::byte& byte : std::as_writable_bytes(std::span(&report, 1))) {
          byte = static_cast<std::byte>(random.bits());
        }
        report.magic = sound.magic;
        report.version = sound.version;
        report.incarnation = 1;
        report.rank = sound.rank;
        if (random.chance(0.5)) cox::seal(report);
      }
      job.decide_on(cox::collect(job.now(), 1, job.job().world_size, arrived, {}, job.clock()));
    }
    CHECK(cox::validate(job.state().plan, job.job()).ok());
  }

  TEST_CASE("a storm of lost numbers makes guard hold and order a rollback, and end both") {
    Scenario scenario;
    scenario.storm_from = 50;
    scenario.storm_until = 75;
    cox::Capabilities capabilities;
    capabilities.rollback = true;
    SimulatedJob job(scenario, {}, cox::default_policies(), capabilities);
    std::vector<cox::ReasonCode> codes;
    for (int i = 0; i < 120; ++i) {
      for (const cox::Reason& reason : job.round().reasons) {
        if (reason.policy == cox::PolicyKind::guard) codes.push_back(reason.code);
      }
    }
    CHECK(job.state().plan.rollback.ticket >= 1);
    CHECK(job.state().plan.rollback.before_round == cox::RoundId(50));
    REQUIRE_FALSE(codes.empty());
    CHECK(codes.front() == cox::ReasonCode::nonfinite_step);
    CHECK(codes.back() == cox::ReasonCode::guard_recovered);
  }

  TEST_CASE("a job that only watches never gets a plan") {
    Scenario scenario = wild(51);
    scenario.watching = true;
    SimulatedJob job(scenario, {}, policies_with_monkey(), all_but_fp8());
    int said = 0;
    for (int i = 0; i < 500; ++i) {
      const cox::Decision decision = job.round();
      if (decision.summary.reporting > 0) REQUIRE_FALSE(decision.plan.has_value());
      for (const cox::Reason& reason : decision.reasons) {
        said += reason.policy == cox::PolicyKind::none &&
                reason.code == cox::ReasonCode::nobody_applies_plans;
      }
    }
    CHECK(said >= 1);
  }

  TEST_CASE("16,384 ranks and 256 blocks are decided on") {
    Scenario scenario;
    scenario.ranks = 16384;
    scenario.blocks = 256;
    scenario.slowdowns = {{cox::RankId(777), cox::Phase::backward, 0.5, 0}};
    SimulatedJob job(scenario, {}, cox::default_policies());
    std::vector<cox::Reason> reasons;
    for (int i = 0; i < 14; ++i) {
      for (cox::Reason& reason : job.round().reasons) reasons.push_back(std::move(reason));
    }
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].rank == cox::RankId(777));
  }
}
