// Decide: from the signals of a round to the next plan, with a reason for every change and for
// every change withheld. Pure: the same state, signals, job, configuration and policies give the
// same decision on every machine, which is what `cox replay` checks. Runs on the coordinator's
// thread; linear in ranks.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/control_state.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"

namespace cox {

inline constexpr std::size_t kSlowRanksTold = 16;

struct Decision {
  StepSummary summary;
  std::optional<Plan> plan;  // to publish; empty = the last one stays
  std::vector<Reason> reasons;
  std::vector<SlowRank> slow_ranks;  // the slowest, at most kSlowRanksTold, slowest first
};

struct Decided {
  ControlState state;
  Decision decision;
};

// Estimates of the ranks, guard, then the other policies in the order of `policies`, then the
// user's overrides, then validate. Nothing changes while a plan is in flight (some rank may not
// apply the newest one yet), while nobody applies plans, or, guard and overrides aside, while a
// hold is in force. What is withheld leaves a reason when that is news, not in every round. A
// policy that throws is reported and training goes on; a custom one keeps the state it had.
Decided decide(const JobFacts& job, const Config& config, const PolicySet& policies,
               ControlState state, const StepSignals& signals);

// Before the first round, on rank 0: what the user forces and what policies want the first step to
// run under already goes into the plan of `state` (it keeps its id, so all ranks must start from
// it). Mode, capabilities and a failing policy are handled as in decide(), where the first round
// says what of the user's cannot be done.
struct Begun {
  ControlState state;
  std::vector<Reason> reasons;
};
Begun begin_job(const JobFacts& job, const Config& config, const PolicySet& policies,
                ControlState state);

}  // namespace cox
