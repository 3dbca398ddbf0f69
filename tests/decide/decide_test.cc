#include "coordinator/decide/decide.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace {

using cox::HoldUntil;
using cox::MemoryAction;
using cox::Outcome;
using cox::PolicyKind;
using cox::PolicyMode;
using cox::Precision;
using cox::ReasonCode;
using cox::RoundId;
using cox::SetActions;
using cox::SetBatch;
using cox::SetPrecision;
using cox::SetScaler;
using cox::SetShares;

using Requests = std::vector<cox::PlanChange>;

struct Calls {
  static constexpr std::uint32_t kVersion = 1;
  std::uint64_t count = 0;
  static auto fields(auto& self) {
    return cox::message("Calls", cox::field(1, "count", self.count));
  }
};

// Requests the same change in every round, and counts the rounds in its state.
class Requesting final : public cox::Policy {
 public:
  explicit Requesting(Requests requests, PolicyKind kind = PolicyKind::custom)
      : requests_(std::move(requests)), kind_(kind) {}
  PolicyKind kind() const override { return kind_; }
  std::string_view name() const override {
    return kind_ == PolicyKind::guard ? "guard" : "requesting";
  }
  cox::PolicyOutput propose(const cox::PolicyInput&, cox::PolicyState state) const override {
    cox::PolicyOutput output;
    for (const cox::PlanChange& request : requests_) {
      cox::Reason reason;
      reason.code = ReasonCode::custom;
      reason.text = "because";
      output.proposals.push_back({request, reason});
    }
    auto calls = state.take_or_fresh<Calls>();
    ++calls.count;
    output.state = cox::PolicyState::of(calls);
    return output;
  }

 private:
  Requests requests_;
  PolicyKind kind_;
};

class Throwing final : public cox::Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "throwing"; }
  cox::PolicyOutput propose(const cox::PolicyInput&, cox::PolicyState) const override {
    throw std::runtime_error("out of ideas");
  }
};

// A simulated job of two ranks, one round after another.
struct SimulatedJob {
  cox::JobFacts job;
  cox::Config config;
  cox::PolicySet policies;
  cox::ControlState state;
  std::uint64_t round = 0;

  explicit SimulatedJob(Requests requests = {}) {
    job.incarnation = 1;
    job.world_size = 2;
    job.blocks = {"a", "b"};
    job.capabilities = {0b0011, 0b0011, true, true, true};
    policies = {std::make_shared<Requesting>(std::move(requests))};
    state = cox::initial_state(job);
  }

  cox::StepSignals signals(std::uint64_t applied) {
    cox::StepSignals s;
    s.round = RoundId(++round);
    for (int rank = 0; rank < 2; ++rank) {
      cox::RankSignal report;
      report.rank = cox::RankId(rank);
      report.rounds = 1;
      report.round = s.round;
      report.plan_held = report.plan_applied = applied;
      s.reports.push_back(report);
    }
    return s;
  }

  cox::Decision next(const cox::StepSignals& s) {
    cox::Decided decided = cox::decide(job, config, policies, std::move(state), s);
    state = std::move(decided.state);
    return std::move(decided.decision);
  }
  cox::Decision next(std::uint64_t applied) { return next(signals(applied)); }
  cox::Decision next() { return next(state.plan.id.number); }
};

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a request becomes the next plan, two rounds ahead, with its reason") {
    SimulatedJob simulated({SetPrecision{cox::BlockId(1), Precision::bf16}});
    const cox::Decision d = simulated.next();
    REQUIRE(d.plan.has_value());
    CHECK(d.plan->id == cox::PlanId{1, 1});
    CHECK(d.plan->earliest_round == RoundId(3));
    CHECK(d.plan->precision[1] == Precision::bf16);
    REQUIRE(d.reasons.size() == 1);
    CHECK(d.reasons[0].outcome == Outcome::changed);
    CHECK(d.reasons[0].policy == PolicyKind::custom);
    CHECK(d.reasons[0].round == RoundId(1));
    CHECK(simulated.state.plan == *d.plan);
  }

  TEST_CASE("a request ends as changed, clamped, unchanged or vetoed") {
    struct Row {
      const char* what;
      cox::PlanChange request;
      Outcome outcome;
      ReasonCode code;
    };
    const std::vector<MemoryAction> keep(2, MemoryAction::keep);
    const std::vector<MemoryAction> both = {MemoryAction::recompute, MemoryAction::offload};
    const std::vector<MemoryAction> offload(2, MemoryAction::offload);
    const std::vector<MemoryAction> leveled(2, cox::recompute_level(3));
    const std::vector<MemoryAction> unknown(2, static_cast<MemoryAction>(11));
    cox::ScalerRules broken;
    broken.growth_factor = 0;
    const Row rows[] = {
        {"precision", SetPrecision{cox::BlockId(0), Precision::bf16}, Outcome::changed,
         ReasonCode::custom},
        {"same precision", SetPrecision{cox::BlockId(0), Precision::fp32}, Outcome::unchanged,
         ReasonCode::custom},
        {"no such block", SetPrecision{cox::BlockId(2), Precision::bf16}, Outcome::vetoed,
         ReasonCode::invalid_proposal},
        {"no such precision", SetPrecision{cox::BlockId(0), static_cast<Precision>(77)},
         Outcome::vetoed, ReasonCode::invalid_proposal},
        {"precision out of reach", SetPrecision{cox::BlockId(0), Precision::fp8}, Outcome::vetoed,
         ReasonCode::not_capable},
        {"actions in part", SetActions{{both}, {}}, Outcome::clamped, ReasonCode::not_capable},
        {"actions out of reach", SetActions{{offload}, {}}, Outcome::vetoed,
         ReasonCode::not_capable},
        {"a level out of reach", SetActions{{leveled}, {}}, Outcome::vetoed,
         ReasonCode::not_capable},
        {"no such action", SetActions{{unknown}, {}}, Outcome::vetoed,
         ReasonCode::invalid_proposal},
        {"same actions", SetActions{{keep, keep}, {cox::ProfileId(1), cox::ProfileId(0)}},
         Outcome::unchanged, ReasonCode::custom},
        {"no such profile", SetActions{{keep}, {cox::ProfileId(1), cox::ProfileId(0)}},
         Outcome::vetoed, ReasonCode::invalid_proposal},
        {"shares", SetShares{{1, 3}}, Outcome::changed, ReasonCode::custom},
        {"shares of another world", SetShares{{1, 3, 1}}, Outcome::vetoed,
         ReasonCode::invalid_proposal},
        {"batch", SetBatch{4}, Outcome::changed, ReasonCode::custom},
        {"a field by its member", cox::set(&cox::Plan::step_samples, 4), Outcome::changed,
         ReasonCode::custom},
        {"batch too large", SetBatch{1ull << 40}, Outcome::vetoed, ReasonCode::invalid_proposal},
        {"scaler", SetScaler{broken}, Outcome::vetoed, ReasonCode::invalid_proposal},
        {"hold", HoldUntil{RoundId(9)}, Outcome::changed, ReasonCode::custom},
        {"rollback", cox::RollBack{RoundId(1)}, Outcome::changed, ReasonCode::custom},
    };
    for (const Row& row : rows) {
      CAPTURE(row.what);
      SimulatedJob simulated({row.request});
      const cox::Decision d = simulated.next();
      REQUIRE(d.reasons.size() == 1);
      CHECK(d.reasons[0].outcome == row.outcome);
      CHECK(d.reasons[0].code == row.code);
      const bool done = row.outcome == Outcome::changed || row.outcome == Outcome::clamped;
      CHECK(d.plan.has_value() == done);
      CHECK(cox::validate(simulated.state.plan, simulated.job).ok());
    }
  }

  TEST_CASE("a job without shares, batches and snapshots is spared requests for them") {
    for (const cox::PlanChange& request :
         {cox::PlanChange(SetShares{{1, 3}}), cox::PlanChange(SetBatch{4}),
          cox::PlanChange(cox::RollBack{RoundId(1)})}) {
      SimulatedJob simulated({request});
      simulated.job.capabilities = {};
      const cox::Decision d = simulated.next();
      CHECK_FALSE(d.plan.has_value());
      REQUIRE(d.reasons.size() == 1);
      CHECK(d.reasons[0].code == ReasonCode::not_capable);
    }
  }

  TEST_CASE("while a plan is in flight the next one waits, and says so once") {
    SimulatedJob simulated({SetBatch{4}});
    REQUIRE(simulated.next().plan.has_value());
    simulated.policies = {std::make_shared<Requesting>(Requests{SetBatch{8}})};
    const cox::Decision waits = simulated.next(0);
    CHECK_FALSE(waits.plan.has_value());
    REQUIRE(waits.reasons.size() == 1);
    CHECK(waits.reasons[0].code == ReasonCode::plan_in_flight);
    CHECK(waits.reasons[0].outcome == Outcome::vetoed);
    CHECK(simulated.next(0).reasons.empty());
    CHECK_FALSE(simulated.state.plan.activated_round.has_value());
    const cox::Decision next = simulated.next(1);
    REQUIRE(next.plan.has_value());
    CHECK(next.plan->id.number == 2);
    CHECK(next.plan->step_samples == 8);
  }

  TEST_CASE("nothing requested means nothing said while a plan is in flight") {
    SimulatedJob simulated({SetBatch{4}});
    simulated.next();
    simulated.policies = {std::make_shared<Requesting>(Requests{})};
    CHECK(simulated.next(0).reasons.empty());
  }

  TEST_CASE("the round in which a plan is first seen applied is kept with it") {
    SimulatedJob simulated({SetBatch{4}});
    simulated.next();
    simulated.next(0);
    simulated.next(1);
    CHECK(simulated.state.plan.activated_round == RoundId(3));
  }

  TEST_CASE("a hold stops every policy but guard, also in the round that begins it") {
    SimulatedJob simulated;
    simulated.policies = {
        std::make_shared<Requesting>(Requests{SetBatch{4}}),
        std::make_shared<Requesting>(Requests{HoldUntil{RoundId(4)}}, PolicyKind::guard)};
    const cox::Decision first = simulated.next();
    REQUIRE(first.plan.has_value());
    CHECK(first.plan->hold_until == RoundId(4));
    CHECK(first.plan->step_samples == 0);
    REQUIRE(first.reasons.size() == 2);
    CHECK(first.reasons[0].policy == PolicyKind::guard);
    CHECK(first.reasons[1].code == ReasonCode::hold_in_force);
    CHECK_FALSE(simulated.next().plan.has_value());
    CHECK_FALSE(simulated.next().plan.has_value());
    CHECK(simulated.next().plan->step_samples == 4);
  }

  TEST_CASE(
      "a policy that only observes says once what it would do; one that is off says nothing") {
    SimulatedJob simulated({SetBatch{4}});
    simulated.config.policy_modes["requesting"] = PolicyMode::observe;
    const cox::Decision d = simulated.next();
    CHECK_FALSE(d.plan.has_value());
    REQUIRE(d.reasons.size() == 1);
    CHECK(d.reasons[0].outcome == Outcome::observed);
    CHECK(d.reasons[0].code == ReasonCode::custom);
    CHECK(simulated.next().reasons.empty());
    simulated.config.policy_modes["requesting"] = PolicyMode::off;
    CHECK(simulated.next().reasons.empty());
    CHECK(cox::state_of(simulated.state, "requesting") == cox::PolicyState::of(Calls{2}));
  }

  TEST_CASE("shares that the user forces win over every policy and over a hold") {
    SimulatedJob simulated({SetShares{{1, 3}}});
    simulated.config.force.shares = {5, 1};
    bool held = false;
    SUBCASE("without a hold") {}
    SUBCASE("under a hold") {
      held = true;
    }
    if (held) simulated.state.plan.hold_until = RoundId(100);
    const cox::Decision d = simulated.next();
    REQUIRE(d.plan.has_value());
    CHECK(d.plan->shares == std::vector<std::uint32_t>{5, 1});
    REQUIRE(d.reasons.size() == 2);
    CHECK(d.reasons[0].code == (held ? ReasonCode::hold_in_force : ReasonCode::override_applied));
    CHECK(d.reasons[0].outcome == Outcome::vetoed);
    CHECK(d.reasons[1].code == ReasonCode::override_applied);
    CHECK(d.reasons[1].outcome == Outcome::changed);
    CHECK(simulated.next().reasons.empty());
  }

  TEST_CASE("forced shares that do not fit are refused once") {
    SimulatedJob simulated;
    simulated.config.force.shares = {1, 2, 3};
    const cox::Decision d = simulated.next();
    CHECK_FALSE(d.plan.has_value());
    REQUIRE(d.reasons.size() == 1);
    CHECK(d.reasons[0].code == ReasonCode::invalid_proposal);
    CHECK(simulated.next().reasons.empty());
  }

  TEST_CASE("when every rank only watches no plan goes out, and that is said once") {
    SimulatedJob simulated({SetBatch{4}});
    for (int i = 0; i < 3; ++i) {
      cox::StepSignals s = simulated.signals(0);
      for (cox::RankSignal& report : s.reports) report.set(cox::SignalFlag::watching);
      const cox::Decision d = simulated.next(s);
      CHECK_FALSE(d.plan.has_value());
      REQUIRE(d.reasons.size() == (i == 0 ? 2 : 0));
      if (i == 0) CHECK(d.reasons[1].code == ReasonCode::nobody_applies_plans);
    }
    CHECK(simulated.next().plan.has_value());
  }

  TEST_CASE("a policy that throws is reported once and stops nobody else") {
    SimulatedJob simulated({SetBatch{4}});
    simulated.policies.insert(simulated.policies.begin(), std::make_shared<Throwing>());
    cox::state_of(simulated.state, "throwing") = cox::PolicyState::of(Calls{7});
    const cox::Decision d = simulated.next();
    REQUIRE(d.plan.has_value());
    REQUIRE(d.reasons.size() == 2);
    CHECK(d.reasons[0].code == ReasonCode::policy_failed);
    CHECK(d.reasons[0].text.find("out of ideas") != std::string::npos);
    CHECK(cox::state_of(simulated.state, "throwing") == cox::PolicyState::of(Calls{7}));
    for (const cox::Reason& reason : simulated.next().reasons) {
      CHECK(reason.code != ReasonCode::policy_failed);
    }
  }

  TEST_CASE("ranks that stay away are told after three rounds, once") {
    SimulatedJob simulated;
    for (int i = 1; i <= 5; ++i) {
      cox::StepSignals s = simulated.signals(0);
      s.reports.pop_back();
      s.faults = {{cox::RankId(1), cox::ReportFault::missing, s.round}};
      const cox::Decision d = simulated.next(s);
      REQUIRE(d.reasons.size() == (i == 3 ? 1 : 0));
      if (i == 3) CHECK(d.reasons[0].rank == cox::RankId(1));
    }
  }

  TEST_CASE("a round without any report changes nothing and is not history") {
    SimulatedJob simulated;
    cox::StepSignals s;
    s.round = RoundId(1);
    const cox::Decision d = simulated.next(s);
    CHECK_FALSE(d.plan.has_value());
    CHECK(simulated.state.history.empty());
  }

  TEST_CASE("history is bounded and keeps the newest rounds") {
    SimulatedJob simulated;
    for (int i = 0; i < 300; ++i) simulated.next();
    CHECK(simulated.state.history.size() == cox::History::kCapacity);
    CHECK(simulated.state.history.rounds().back().round == RoundId(300));
  }
}
