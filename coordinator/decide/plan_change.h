// PlanChange: the value that a policy proposes for a field of the plan. Decide applies a change
// that the job is capable of, unless the user forces another value. Decide may also clamp or refuse
// a change, with a reason, and takes a change back by restoring the earlier values. Plain values;
// pure functions. A new field needs no code here:
//
//   output.proposals.push_back({set(&Plan::step_samples, 64), std::move(reason)});
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
  std::uint8_t field = 0;  // the id of the field's row
  Knob knob = Knob::other;
  Plan to;                // has the proposed field; the other fields do not count
  BlockId first_block{};  // for precision: the first block of to.precision
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

// Named proposals. Each converts to a PlanChange.
struct SetPrecision {
  BlockId block{};
  Precision precision = Precision::fp32;
  std::uint16_t blocks = 1;  // `block` and the next ones
  operator PlanChange() const {
    PlanChange change = set(&Plan::precision, std::vector<Precision>(blocks, precision));
    change.first_block = block;
    return change;
  }
};
struct SetActions {  // replaces all profiles and the assignment of ranks
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
struct HoldUntil {  // a hold only becomes longer
  RoundId round{};
  operator PlanChange() const { return set(&Plan::hold_until, round); }
};
struct RollBack {  // under a new ticket
  RoundId before_round{};
  operator PlanChange() const { return set(&Plan::rollback, {0, before_round}); }
};

struct ChangeResult {
  Outcome outcome = Outcome::changed;         // changed, unchanged, clamped or vetoed
  ReasonCode code = ReasonCode::unspecified;  // why, if clamped or vetoed
  std::string note;                           // the same for people
};

// Applies `change` to `plan`. REQUIRES: `plan` is valid for `job`. The plan stays valid, and
// unchanged unless the outcome is changed or clamped.
ChangeResult apply_change(Plan& plan, const PlanChange& change, const JobFacts& job);

// Returns whether the user forces the value that `change` would set, so that no policy may set it.
bool is_forced(const PlanChange& change, const OverrideConfig& force);

// Puts the user's overrides into `plan`. Returns the reason, with the change or why it is vetoed;
// none if the plan has the values already.
std::optional<Reason> apply_forced(Plan& plan, const OverrideConfig& force, const JobFacts& job);

// Returns whether `after` may give a rank another number of samples than `before`.
bool moves_samples(const Plan& before, const Plan& after);

// Restores in `plan` exactly the values that the condemned changes replaced. Returns an empty text
// on success. Otherwise keeps the plan and returns why the changes must stay, as a clause: a later
// plan has set another value, the user forces one, or a rank would get more samples than
// `most_samples` allows. Empty `most_samples` = unlimited.
std::string take_back(const Condemned& condemned, const JobFacts& job, const OverrideConfig& force,
                      std::span<const std::uint64_t> most_samples, Plan& plan);

// Returns the changes that take_back() makes, for the next trial. REQUIRES: `condemned.measured` is
// known.
std::vector<AppliedChange> changes_back(const Condemned& condemned);

// Returns the reason for a take-back, with the numbers and the first round in which such a change
// may be tried again; or the reason for which the changes stay.
Reason explain_taken_back(const Condemned& condemned, RoundId until);
Reason explain_stays(const Condemned& condemned, const std::string& why_not);

}  // namespace cox
