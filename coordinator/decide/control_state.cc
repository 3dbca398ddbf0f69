#include "coordinator/decide/control_state.h"

#include <algorithm>
#include <span>
#include <utility>

#include "coordinator/core/plan_fields.h"
#include "coordinator/core/text.h"
#include "coordinator/decide/effects.h"

namespace cox {
namespace {

bool fits_world(const Plan& plan, const JobFacts& job) {
  bool fits = true;
  for_each_per_rank_field([&](const auto& field) {
    const auto& entries = plan.*field.member;
    fits = fits && (entries.empty() || entries.size() == job.ranks());
  });
  return fits;
}

// If ranks are unknown, all have one profile. Every plan has a first profile.
void drop_ranks(Plan& plan) {
  for_each_per_rank_field([&](const auto& field) { (plan.*field.member).clear(); });
  if (plan.profiles.size() > 1) plan.profiles.resize(1);
}

// Records the changes of a restart among those that the job begins with.
void note_restart(ControlState& state, const JobFacts& job, std::span<const Reason> reasons) {
  if (reasons.empty()) return;
  const RoundId last = state.history.empty() ? RoundId() : state.history.rounds().back().round;
  PolicyState& kept = state_of(state, kEffects);
  Effects effects =
      effects_of_start(kept.take_or_fresh<Effects>(), job.incarnation, state.plan, last);
  note_start(effects, reasons, state.plan);
  kept = PolicyState::of(std::move(effects));
}

}  // namespace

ControlState initial_state(const JobFacts& job) {
  ControlState state;
  state.plan = initial_plan(job);
  return state;
}

Refitted refit(ControlState saved, const JobFacts& job) {
  Refitted refitted{std::move(saved), {}};
  Plan& plan = refitted.state.plan;
  plan.id = {job.incarnation, 0};
  plan.earliest_round = {};
  plan.activated_round.reset();
  plan.hold_until = {};
  if (!fits_world(plan, job)) {
    drop_ranks(plan);
    refitted.reasons.push_back(
        reason_of(ReasonCode::restored_at_other_world_size,
                  concat("restored at ", job.world_size,
                         " ranks: shares and per-rank memory actions are reset, global knobs stay"),
                  Outcome::changed));
  }
  // A loop that no longer takes its batch from the plan keeps the rest of the plan.
  if (!job.capabilities.accumulation && plan.step_samples != 0) {
    refitted.reasons.push_back(reason_of(
        ReasonCode::not_capable,
        concat("the saved batch of ", plan.step_samples,
               " samples a step cannot be applied by this job; the job starts with its own batch"),
        Outcome::changed));
    plan.step_samples = 0;
  }
  const Status status = validate(plan, job);
  if (!status.ok()) {
    const RollbackOrder done = plan.rollback;
    plan = initial_plan(job);
    plan.rollback = done;
    refitted.reasons.push_back(
        reason_of(ReasonCode::not_capable,
                  concat("the saved plan does not fit this job and is reset: ", status.message()),
                  Outcome::changed));
  }
  note_restart(refitted.state, job, refitted.reasons);
  return refitted;
}

PolicyState& state_of(ControlState& state, std::string_view policy) {
  auto& all = state.policies;
  const auto at = std::ranges::lower_bound(all, policy, {}, &NamedPolicyState::policy);
  if (at != all.end() && at->policy == policy) return at->state;
  return all.insert(at, {std::string(policy), {}})->state;
}

}  // namespace cox
