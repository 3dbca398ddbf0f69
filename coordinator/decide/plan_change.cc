#include "coordinator/decide/plan_change.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "coordinator/core/plan_fields.h"

namespace cox {
namespace {

ChangeResult not_capable(const auto& what) {
  return {Outcome::vetoed, ReasonCode::not_capable, concat("this job cannot apply ", what)};
}

// Puts `candidate` in place of `plan` if it is valid and says something else.
ChangeResult replace(Plan& plan, Plan candidate, const JobFacts& job) {
  const Status status = validate(candidate, job);
  if (!status.ok()) return {Outcome::vetoed, ReasonCode::invalid_proposal, status.message()};
  if (same_effect(plan, candidate)) return {Outcome::unchanged, {}, {}};
  plan = std::move(candidate);
  return {};
}

struct Applier {
  Plan& plan;
  const JobFacts& job;

  template <class T>
  ChangeResult set(T Plan::*member, const T& value, const char* what) const {
    bool can = true;
    for_each_plan_field([&]<class U>(const PlanField<U>& field) {
      if constexpr (std::is_same_v<T, U>) {
        if (field.member == member) can = is_capable(field, value, job.capabilities);
      }
    });
    if (!can) return not_capable(what);
    Plan candidate = plan;
    candidate.*member = value;
    return replace(plan, std::move(candidate), job);
  }

  // In place: a policy may set hundreds of blocks at once.
  ChangeResult operator()(const SetPrecision& change) const {
    const std::size_t block = change.block.value();
    const std::size_t end = block + change.blocks;
    if (change.blocks == 0 || end > plan.precision.size() ||
        static_cast<unsigned>(change.precision) > 3) {
      return {Outcome::vetoed, ReasonCode::invalid_proposal,
              concat("precision of block ", block, " of ", plan.precision.size())};
    }
    if (!job.capabilities.can(change.precision)) {
      return not_capable(change.precision);
    }
    ChangeResult result{Outcome::unchanged, {}, {}};
    for (std::size_t b = block; b < end; ++b) {
      if (std::exchange(plan.precision[b], change.precision) != change.precision) {
        result.outcome = Outcome::changed;
      }
    }
    return result;
  }

  // Actions that the job cannot do become keep, which is always right and only costs memory.
  ChangeResult operator()(const SetActions& change) const {
    Plan candidate = plan;
    candidate.profiles = change.profiles;
    candidate.rank_profile = change.rank_profile;
    bool clamped = false;
    for (ActionProfile& actions : candidate.profiles) {
      for (MemoryAction& action : actions) {
        if (action > kLastAction || job.capabilities.can(action)) continue;
        action = MemoryAction::keep;
        clamped = true;
      }
    }
    const ChangeResult result = replace(plan, std::move(candidate), job);
    if (!clamped || result.outcome == Outcome::vetoed) return result;
    if (result.outcome == Outcome::unchanged) return not_capable("these memory actions");
    return {Outcome::clamped, ReasonCode::not_capable,
            "actions that this job cannot apply became keep"};
  }

  ChangeResult operator()(const SetShares& change) const {
    return set(&Plan::shares, change.shares, "shares");
  }

  ChangeResult operator()(const SetBatch& change) const {
    return set(&Plan::step_samples, change.step_samples, "another number of samples a step");
  }

  ChangeResult operator()(const SetScaler& change) const {
    return set(&Plan::scaler, change.rules, "another scaler");
  }

  // A hold is only ever made longer.
  ChangeResult operator()(const HoldUntil& change) const {
    if (change.round <= plan.hold_until) return {Outcome::unchanged, {}, {}};
    plan.hold_until = change.round;
    return {};
  }

  ChangeResult operator()(const RollBack& change) const {
    if (!job.capabilities.rollback) return not_capable("a rollback: no snapshots are taken");
    ++plan.rollback.ticket;
    plan.rollback.before_round = change.before_round;
    return {};
  }
};

}  // namespace

ChangeResult apply_change(Plan& plan, const PlanChange& change, const JobFacts& job) {
  return std::visit(Applier{plan, job}, change);
}

bool is_forced(const PlanChange& change, const OverrideConfig& force) {
  return std::holds_alternative<SetShares>(change) && !force.shares.empty();
}

std::optional<Reason> apply_forced(Plan& plan, const OverrideConfig& force, const JobFacts& job) {
  if (force.shares.empty() || force.shares == plan.shares) return std::nullopt;
  const ChangeResult result = apply_change(plan, SetShares{force.shares}, job);
  if (result.outcome == Outcome::vetoed) {
    return reason_of(result.code, "force.shares is not applied: " + result.note, result.outcome);
  }
  return reason_of(ReasonCode::override_applied,
                   "force.shares: the user sets the shares of all ranks", result.outcome);
}

Knob knob_of(const PlanChange& change) {
  if (std::holds_alternative<SetPrecision>(change)) return Knob::precision;
  if (std::holds_alternative<SetActions>(change)) return Knob::actions;
  if (std::holds_alternative<SetShares>(change)) return Knob::shares;
  if (std::holds_alternative<SetBatch>(change)) return Knob::batch;
  return Knob::other;
}

}  // namespace cox
