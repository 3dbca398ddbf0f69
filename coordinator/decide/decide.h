// Decide turns the signals of a round into the next plan:
//
//   StepSignals -> StepSummary -> Estimates -> Effects -> policies -> Draft -> Plan -> Effects
//
// Every change, and every change that is withheld, has a reason. Pure: the same state, signals,
// job, configuration and policies give the same decision on every machine, which `cox replay`
// checks. Runs on the coordinator's thread; linear in the number of ranks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/control_state.h"
#include "coordinator/decide/effects.h"
#include "coordinator/decide/policy.h"
#include "coordinator/estimates/slow_findings.h"

namespace cox {

struct Decision {
  StepSummary summary;
  std::optional<Plan> plan;  // to publish; empty = the last plan stays
  std::vector<Reason> reasons;
  SlowFindings slow;  // ranks, hosts and the job as a whole
  // The effects of the decisions of this start of the job, this round included, and the score of
  // each policy. Null only in a default-constructed Decision.
  std::shared_ptr<const SharedEffects> effects;
  std::vector<PolicyScore> scores;
};

struct Decided {
  ControlState state;
  Decision decision;
};

// Decides a round. Asks the guard first, then the other policies in the order of `policies`, then
// applies the user's overrides; every change is validated. In a round in which nothing else
// changes, takes back a change that promised a shorter step and surely did not bring one
// (effects.h).
//
// Nothing changes while a plan is in flight (some rank may not apply the newest one yet) or while
// no rank applies plans. While a hold is in force, only the guard and overrides change the plan. A
// withheld change leaves a reason when the reason is new, not in every round. A policy that throws
// is reported and training goes on; a custom policy keeps its earlier state.
Decided decide(const JobFacts& job, const Config& config, const PolicySet& policies,
               ControlState state, const StepSignals& signals);

struct Begun {
  ControlState state;
  std::vector<Reason> reasons;
};

// Prepares the state before the first round, on rank 0: puts the user's overrides and the policies'
// proposals for the first step into the plan of `state`. The plan keeps its id, so all ranks must
// start from this plan. Mode, capabilities and a failing policy are handled as in decide(). The
// first round reports overrides that cannot be applied.
Begun begin_job(const JobFacts& job, const Config& config, const PolicySet& policies,
                ControlState state);

}  // namespace cox
