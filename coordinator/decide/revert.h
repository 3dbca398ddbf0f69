// Taking a change back: the inverse of what is condemned (effects.h), and how it is told. Called by
// Decide, which applies the inverse like any other change. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/decide/effects.h"
#include "coordinator/decide/policy.h"

namespace cox {

struct Inverse {
  std::vector<PlanChange> changes;  // that restore what was before; none where it must stay
  std::string why_not;              // a clause: why it must stay
};

// Returns the inverse of exactly the fields that were changed, against the newest plan. It must
// stay where a later plan has set them to something else, or where a rank would have more samples
// than the policies allow it now (`most_samples`, empty = nothing limits them).
Inverse inverse_of(const Condemned& condemned, const Plan& newest, const JobFacts& job,
                   std::span<const std::uint64_t> most_samples);

// Carries the inverse out in `plan`. Returns why it cannot be, as a clause, and leaves the plan as
// it is then; nothing where it was. What the user forces is not touched.
std::string carry_out(const Inverse& inverse, const JobFacts& job, const OverrideConfig& force,
                      Plan& plan);

// Returns what goes into the plan, for the next trial. REQUIRES: `condemned.measured` is known.
std::vector<AppliedChange> changes_back(const Condemned& condemned);

// Returns the reasons: what is taken back, with the numbers, and the first round in which the like
// may be tried again; or why it stays.
Reason explain_taken_back(const Condemned& condemned, RoundId until);
Reason explain_stays(const Condemned& condemned, const std::string& why_not);

}  // namespace cox
