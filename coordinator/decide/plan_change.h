// What one proposed change does to a plan: what the job is capable of is carried out, the rest is
// clamped or refused, with a reason. Called by Decide. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/decide/effects.h"
#include "coordinator/decide/policy.h"

namespace cox {

struct ChangeResult {
  Outcome outcome = Outcome::changed;         // changed, unchanged, clamped or vetoed
  ReasonCode code = ReasonCode::unspecified;  // why, when clamped or vetoed
  std::string note;                           // the same for people
};

// REQUIRES: `plan` is valid for `job`. It is valid afterwards too, and untouched unless the outcome
// is changed or clamped.
ChangeResult apply_change(Plan& plan, const PlanChange& change, const JobFacts& job);

// Returns what the change sets.
Knob knob_of(const PlanChange& change);

// Returns whether the user forces what `change` would set, so that no policy may.
bool is_forced(const PlanChange& change, const OverrideConfig& force);

// Puts what the user forces into `plan`. Returns what was done, or why it is vetoed; nothing where
// the plan is so already.
std::optional<Reason> apply_forced(Plan& plan, const OverrideConfig& force, const JobFacts& job);

}  // namespace cox
