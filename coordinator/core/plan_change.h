// What one proposed change does to a plan, and what the user forces. The step of Decide between a
// policy's request and the plan that goes out: carries out what the job is capable of, clamps or
// refuses the rest, and says why. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/reason.h"

namespace cox {

struct ChangeResult {
  Outcome outcome = Outcome::changed;         // changed, unchanged, clamped or vetoed
  ReasonCode code = ReasonCode::unspecified;  // why, when clamped or vetoed
  std::string note;                           // the same for people
};

// Requires: `plan` valid for `job`. It is valid afterwards too, and untouched unless the outcome is
// changed or clamped.
ChangeResult apply_change(Plan& plan, const PlanChange& change, const JobFacts& job);

// Whether the user forces what `change` would set, so that no policy may.
bool is_forced(const PlanChange& change, const OverrideConfig& force);

// Puts what the user forces into `plan`. What was done, or why it is vetoed; nothing where the plan
// is so already. The reason's round is left to the caller. Requires: as apply_change.
std::optional<Reason> apply_forced(Plan& plan, const OverrideConfig& force, const JobFacts& job);

}  // namespace cox
