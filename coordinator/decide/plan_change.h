// PlanChange: the value that a policy proposes for a field of the plan. Decide applies it, where
// the job is capable of it and the user forces nothing else, or clamps or refuses it with a reason;
// and takes it back by the values that were there before. A new field needs nothing here:
//
//   output.proposals.push_back({set(&Plan::step_samples, 64), std::move(reason)});
//
// Plain values; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/plan_fields.h"
#include "coordinator/core/reason.h"
#include "coordinator/decide/effects.h"

namespace cox {

struct PlanChange {
  std::uint8_t field = 0;  // the id of its row
  Knob knob = Knob::other;
  Plan to;                // the field as proposed; the rest does not count
  BlockId first_block{};  // of precision: to.precision is that of this block and those after it
};

// Proposes `value` for the field.
template <class T>
PlanChange set(T Plan::*member, std::type_identity_t<T> value) {
  PlanChange change;
  for_each_plan_field([&]<class U>(const PlanField<U>& field) {
    if constexpr (std::is_same_v<T, U>) {
      if (field.member != member) return;
      change.field = field.id;
      change.knob = field.rules.knob;
    }
  });
  change.to.*member = std::move(value);
  return change;
}

// Proposals with names of their own. Each is a PlanChange wherever one is expected.
struct SetPrecision {
  BlockId block{};
  Precision precision = Precision::fp32;
  std::uint16_t blocks = 1;  // this one and those after it
  operator PlanChange() const {
    PlanChange change = set(&Plan::precision, std::vector<Precision>(blocks, precision));
    change.first_block = block;
    return change;
  }
};
struct SetActions {  // replaces all profiles, and which rank has which
  std::vector<ActionProfile> profiles;
  std::vector<ProfileId> rank_profile;
  operator PlanChange() const {
    PlanChange change = set(&Plan::profiles, profiles);
    change.to.rank_profile = rank_profile;
    return change;
  }
};
struct SetShares {
  std::vector<std::uint32_t> shares;  // empty = even
  operator PlanChange() const { return set(&Plan::shares, shares); }
};
struct SetBatch {
  std::uint64_t step_samples = 0;  // 0 = the job's global batch
  operator PlanChange() const { return set(&Plan::step_samples, step_samples); }
};
struct SetScaler {
  ScalerRules rules{};
  operator PlanChange() const { return set(&Plan::scaler, rules); }
};
struct HoldUntil {  // a hold is only ever made longer
  RoundId round{};
  operator PlanChange() const { return set(&Plan::hold_until, round); }
};
struct RollBack {  // under a new ticket
  RoundId before_round{};
  operator PlanChange() const { return set(&Plan::rollback, {0, before_round}); }
};

struct ChangeResult {
  Outcome outcome = Outcome::changed;         // changed, unchanged, clamped or vetoed
  ReasonCode code = ReasonCode::unspecified;  // why, when clamped or vetoed
  std::string note;                           // the same for people
};

// REQUIRES: `plan` is valid for `job`. It is valid afterwards too, and untouched unless the outcome
// is changed or clamped.
ChangeResult apply_change(Plan& plan, const PlanChange& change, const JobFacts& job);

// Returns whether the user forces what `change` would set, so that no policy may.
bool is_forced(const PlanChange& change, const OverrideConfig& force);

// Puts what the user forces into `plan`. Returns what was done, or why it is vetoed; nothing where
// the plan is so already.
std::optional<Reason> apply_forced(Plan& plan, const OverrideConfig& force, const JobFacts& job);

// Returns whether the plans may give ranks other numbers of samples.
bool moves_samples(const Plan& before, const Plan& after);

// Restores in `plan` exactly what the condemned changes set. Returns nothing where that is done;
// else why it must stay, as a clause, with the plan as it was: a later plan has set it to something
// else, the user forces it, or a rank would have more samples than the policies allow it now
// (`most_samples`, empty = nothing limits them).
std::string take_back(const Condemned& condemned, const JobFacts& job, const OverrideConfig& force,
                      std::span<const std::uint64_t> most_samples, Plan& plan);

// Returns what goes into the plan by take_back(), for the next trial. REQUIRES:
// `condemned.measured` is known.
std::vector<AppliedChange> changes_back(const Condemned& condemned);

// Returns the reasons: what is taken back, with the numbers, and the first round in which the like
// may be tried again; or why it stays.
Reason explain_taken_back(const Condemned& condemned, RoundId until);
Reason explain_stays(const Condemned& condemned, const std::string& why_not);

}  // namespace cox
