#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/decide/decide.h"

#include <doctest/doctest.h>

namespace {

using cox::MemoryAction;
using cox::Outcome;
using cox::PolicyMode;
using cox::ReasonCode;

struct AskedBy {
  static constexpr std::uint32_t kVersion = 1;
  std::int32_t world_size = 0;
  static auto fields(auto& self) {
    return cox::message("AskedBy", cox::field(1, "world_size", self.world_size));
  }
};

// Requests a change before the first round, and records that it was asked.
class Early final : public cox::Policy {
 public:
  explicit Early(cox::PlanChange request) : request_(std::move(request)) {}
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "early"; }
  cox::PolicyOutput propose(const cox::PolicyInput&, cox::PolicyState state) const override {
    return {{}, {}, std::move(state)};
  }
  cox::PolicyOutput at_start(const cox::PolicyInput& input, cox::PolicyState) const override {
    cox::PolicyOutput output;
    cox::Reason reason;
    reason.code = ReasonCode::custom;
    reason.text = "first";
    output.proposals.push_back({request_, reason});
    output.state = cox::PolicyState::of(AskedBy{input.job.world_size});
    return output;
  }

 private:
  cox::PlanChange request_;
};

class Failing final : public cox::Policy {
 public:
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "failing"; }
  cox::PolicyOutput propose(const cox::PolicyInput&, cox::PolicyState state) const override {
    return {{}, {}, std::move(state)};
  }
  cox::PolicyOutput at_start(const cox::PolicyInput&, cox::PolicyState) const override {
    throw std::runtime_error("not yet");
  }
};

cox::JobFacts small_job() {
  cox::JobFacts job;
  job.incarnation = 3;
  job.world_size = 2;
  job.blocks = {"a", "b"};
  job.capabilities.actions = 0b0011;
  return job;
}

cox::SetActions all(MemoryAction action) {
  return {{std::vector(2, action)}, {}};
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("what a policy wants before the first round is in the plan that all start from") {
    const cox::JobFacts job = small_job();
    const cox::Begun begun = cox::begin_job(
        job, {}, {std::make_shared<Early>(all(MemoryAction::recompute))}, cox::initial_state(job));
    CHECK(begun.state.plan.id == cox::initial_plan(job).id);
    CHECK(begun.state.plan.profiles[0] == std::vector(2, MemoryAction::recompute));
    REQUIRE(begun.reasons.size() == 1);
    CHECK(begun.reasons[0].outcome == Outcome::changed);
    CHECK(begun.reasons[0].policy == cox::PolicyKind::custom);
    REQUIRE(begun.state.policies.size() == 3);  // the others are "effects" and "estimates"
    CHECK(begun.state.policies[0].state == cox::PolicyState::of(AskedBy{2}));
  }

  TEST_CASE("what the user forces holds from the first step on, against every policy") {
    cox::JobFacts job = small_job();
    job.capabilities.shares = true;
    cox::Config config;
    config.force.shares = {5, 1};
    const auto requesting = std::make_shared<Early>(cox::SetShares{{1, 3}});
    const cox::Begun begun = cox::begin_job(job, config, {requesting}, cox::initial_state(job));
    CHECK(begun.state.plan.shares == config.force.shares);
    REQUIRE(begun.reasons.size() == 2);
    CHECK(begun.reasons[0].code == ReasonCode::override_applied);
    CHECK(begun.reasons[0].outcome == Outcome::changed);
    CHECK(begun.reasons[1].code == ReasonCode::override_applied);
    CHECK(begun.reasons[1].outcome == Outcome::vetoed);
    // A second call, with more facts of the job.
    CHECK(cox::begin_job(job, config, {}, begun.state).reasons.empty());
  }

  TEST_CASE("shares that the job cannot have are left to the first round, which says why") {
    const cox::JobFacts job = small_job();
    cox::Config config;
    config.force.shares = {5, 1};
    const cox::Begun begun = cox::begin_job(job, config, {}, cox::initial_state(job));
    CHECK(begun.state.plan == cox::initial_plan(job));
    CHECK(begun.reasons.empty());
  }

  TEST_CASE("before the first round too modes, capabilities and failures count") {
    const cox::JobFacts job = small_job();
    cox::Config config;
    cox::PolicySet policies = {std::make_shared<Early>(all(MemoryAction::recompute))};
    Outcome outcome = Outcome::observed;
    std::size_t reasons = 1;
    SUBCASE("observe") {
      config.policy_modes["early"] = PolicyMode::observe;
    }
    SUBCASE("off") {
      config.policy_modes["early"] = PolicyMode::off;
      reasons = 0;
    }
    SUBCASE("an action that the job cannot apply") {
      policies = {std::make_shared<Early>(all(MemoryAction::offload))};
      outcome = Outcome::vetoed;
    }
    SUBCASE("a plan of another job") {
      policies = {std::make_shared<Early>(cox::SetActions{{{MemoryAction::keep}}, {}})};
      outcome = Outcome::vetoed;
    }
    SUBCASE("a policy that fails") {
      policies = {std::make_shared<Failing>()};
      outcome = Outcome::reported;
    }
    SUBCASE("a policy that wants nothing so early") {
      policies = {};
      reasons = 0;
    }
    const cox::Begun begun = cox::begin_job(job, config, policies, cox::initial_state(job));
    CHECK(begun.state.plan == cox::initial_plan(job));
    REQUIRE(begun.reasons.size() == reasons);
    if (reasons > 0) CHECK(begun.reasons[0].outcome == outcome);
  }
}
