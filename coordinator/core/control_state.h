// ControlState: everything that Decide carries from round to round; journalled at the start, saved
// with the training state and restored. Plain value; pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/summary.h"

namespace cox {

inline constexpr std::string_view kEstimates = "estimates";  // name of the state of Estimates

struct NamedPolicyState {
  std::string policy;
  PolicyState state;
  friend bool operator==(const NamedPolicyState&, const NamedPolicyState&) = default;
};

struct ControlState {
  Plan plan;  // the newest published one
  History history;
  std::vector<NamedPolicyState>
      policies;  // sorted by name; "decide" and "estimates" are Decide's own
};

ControlState initial_state(const JobFacts& job);

// Fits a saved state to a new start of the job. Global knobs, history, policy states and the count
// of rollbacks stay; what the new job cannot apply or has other blocks for starts anew; per-rank
// knobs are dropped when the world size differs; a hold ends; each with a reason. The plan gets the
// new incarnation and number 0, so all ranks must start from this plan, not from initial_plan().
struct Refitted {
  ControlState state;
  std::vector<Reason> reasons;
};
Refitted refit(ControlState saved, const JobFacts& job);

// The state kept under `policy`; fresh ones are added. Valid until the next one is added.
PolicyState& state_of(ControlState& state, std::string_view policy);

}  // namespace cox
