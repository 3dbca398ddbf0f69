// Decide: from the signals of a round to the next plan, with a reason for every change and for
// every change withheld. Pure: the same state, signals, job, configuration and policies give the
// same decision on every machine, which is what `cox replay` checks. Runs on the coordinator's
// thread; linear in ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/history.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"

namespace cox {

struct NamedPolicyState {
  std::string policy;
  PolicyState state;
  friend bool operator==(const NamedPolicyState&, const NamedPolicyState&) = default;
};

// Everything that Decide carries from round to round. Saved with the training state.
struct ControlState {
  Plan plan;  // the newest published one
  History history;
  std::vector<NamedPolicyState> policies;  // sorted by name
};

ControlState initial_state(const JobFacts& job);

// Fits a saved state to a new start of the job: global knobs stay, per-rank state is dropped when
// the world size differs (with a reason), the plan gets the new incarnation and number 0.
struct Refitted {
  ControlState state;
  std::vector<Reason> reasons;
};
Refitted refit(ControlState saved, const JobFacts& job);

struct Decision {
  StepSummary summary;
  std::optional<Plan> plan;  // to publish; empty = the last one stays
  std::vector<Reason> reasons;
};

struct Decided {
  ControlState state;
  Decision decision;
};

// guard, then the other policies in the order of `policies`, then clamps, then validate. A plan is
// published only when every rank applies the last one (one plan in flight).
Decided decide(const JobFacts& job, const Config& config, const PolicySet& policies,
               ControlState state, const StepSignals& signals);

}  // namespace cox
