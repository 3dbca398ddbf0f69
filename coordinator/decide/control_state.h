// ControlState: the state that Decide carries from round to round. Journalled at the start, saved
// with the training state and restored. Plain value; pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/policy.h"

namespace cox {

// The names under which Estimates and Effects are kept.
inline constexpr std::string_view kEstimates = "estimates";
inline constexpr std::string_view kEffects = "effects";

struct NamedPolicyState {
  std::string policy;
  PolicyState state;
  friend bool operator==(const NamedPolicyState&, const NamedPolicyState&) = default;
};

struct ControlState {
  Plan plan;  // the newest published one
  History history;
  // Sorted by name. "decide", "effects" and "estimates" are Decide's own.
  std::vector<NamedPolicyState> policies;
};

// Returns the state of a job that starts without a saved one.
ControlState initial_state(const JobFacts& job);

// Fits a saved state to a new start of the job. History and policy states stay, and so does the
// plan, with these exceptions:
// - At another world size, shares and per-rank memory actions are reset.
// - The number of samples a step is dropped if the new loop cannot apply such a number.
// - A plan that is still invalid (other blocks, missing capabilities) becomes initial_plan(), but
//   keeps its rollback ticket.
// - A hold ends.
// Each of the first three adds a reason. The plan gets the new incarnation and number 0. All ranks
// must start from this plan, not from initial_plan().
struct Refitted {
  ControlState state;
  std::vector<Reason> reasons;
};
Refitted refit(ControlState saved, const JobFacts& job);

// Returns the state kept under the name `policy`; adds a fresh one if there is none. The reference
// is valid until the next state is added.
PolicyState& state_of(ControlState& state, std::string_view policy);

}  // namespace cox
