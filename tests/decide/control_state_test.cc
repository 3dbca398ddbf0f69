#include "coordinator/decide/control_state.h"

#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace {

using cox::MemoryAction;
using cox::Precision;
using cox::ProfileId;
using cox::ReasonCode;
using cox::RoundId;

cox::JobFacts job_of(std::int32_t world, std::uint32_t incarnation) {
  cox::JobFacts job;
  job.incarnation = incarnation;
  job.world_size = world;
  job.blocks = {"a", "b"};
  job.capabilities = {0b0011, 0b0011, true, true, true};
  return job;
}

cox::ControlState steered_state() {
  cox::ControlState state = cox::initial_state(job_of(2, 1));
  cox::Plan& plan = state.plan;
  plan.id.number = 9;
  plan.earliest_round = RoundId(50);
  plan.activated_round = RoundId(51);
  plan.precision = {Precision::bf16, Precision::fp32};
  plan.profiles.push_back({MemoryAction::recompute, MemoryAction::keep});
  plan.rank_profile = {ProfileId(0), ProfileId(1)};
  plan.shares = {3, 1};
  plan.scaler.growth_interval = 7;
  plan.hold_until = RoundId(90);
  plan.rollback = {2, RoundId(40)};
  cox::state_of(state, "guard") = cox::PolicyState::from_bytes("five");
  return state;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("restarting at the same world size keeps every knob under a new incarnation") {
    const cox::JobFacts job = job_of(2, 2);
    const cox::Refitted refitted = cox::refit(steered_state(), job);
    cox::Plan expected = steered_state().plan;
    expected.id = {2, 0};
    expected.earliest_round = expected.hold_until = RoundId(0);
    expected.activated_round.reset();
    CHECK(refitted.state.plan == expected);
    CHECK(refitted.reasons.empty());
    CHECK(refitted.state.policies == steered_state().policies);
    CHECK(cox::validate(refitted.state.plan, job).ok());
  }

  TEST_CASE("restarting at another world size drops what belonged to ranks, with a reason") {
    const cox::JobFacts job = job_of(4, 2);
    const cox::Refitted refitted = cox::refit(steered_state(), job);
    const cox::Plan& plan = refitted.state.plan;
    CHECK(plan.shares.empty());
    CHECK(plan.rank_profile.empty());
    CHECK(plan.profiles.size() == 1);
    CHECK(plan.precision == steered_state().plan.precision);
    CHECK(plan.scaler.growth_interval == 7);
    CHECK(plan.rollback.ticket == 2);
    REQUIRE(refitted.reasons.size() == 1);
    CHECK(refitted.reasons[0].code == ReasonCode::restored_at_other_world_size);
    CHECK(cox::validate(plan, job).ok());
  }

  TEST_CASE("a saved plan that the new job cannot apply starts anew, with a reason") {
    cox::JobFacts job = job_of(2, 2);
    SUBCASE("other blocks") {
      job.blocks.push_back("c");
    }
    SUBCASE("fewer capabilities") {
      job.capabilities = {};
    }
    const cox::Refitted refitted = cox::refit(steered_state(), job);
    REQUIRE(refitted.reasons.size() == 1);
    CHECK(refitted.reasons[0].code == ReasonCode::not_capable);
    CHECK(refitted.state.plan.precision[0] == Precision::fp32);
    CHECK(refitted.state.plan.rollback.ticket == 2);
    CHECK(cox::validate(refitted.state.plan, job).ok());
  }

  TEST_CASE("a saved batch that the new job cannot apply is dropped alone, with a reason") {
    cox::ControlState saved = steered_state();
    saved.plan.step_samples = 96;
    cox::JobFacts job = job_of(2, 2);
    CHECK(cox::refit(saved, job).state.plan.step_samples == 96);
    job.capabilities.accumulation = false;
    const cox::Refitted refitted = cox::refit(saved, job);
    CHECK(refitted.state.plan.step_samples == 0);
    CHECK(refitted.state.plan.shares == steered_state().plan.shares);
    REQUIRE(refitted.reasons.size() == 1);
    CHECK(refitted.reasons[0].text.find("96 samples") != std::string::npos);
  }

  TEST_CASE("states of policies are found by name and kept in order of names") {
    cox::ControlState state;
    cox::state_of(state, "b") = cox::PolicyState::from_bytes("2");
    cox::state_of(state, "a") = cox::PolicyState::from_bytes("1");
    cox::state_of(state, "c") = cox::PolicyState::from_bytes("3");
    cox::state_of(state, "b") = cox::PolicyState::from_bytes("4");
    REQUIRE(state.policies.size() == 3);
    CHECK(state.policies[0].policy == "a");
    CHECK(state.policies[1].state.bytes() == "4");
    CHECK(state.policies[2].policy == "c");
  }
}
