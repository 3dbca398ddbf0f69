// Estimates: the beliefs about the ranks after a round. The stage between StepSummary and the
// policies: which rank is slow, in which phase, by how much, since when and how surely
// (slowness.h); how fast each rank works on its samples, with noise, fixed cost of a step, and
// changes of speed (speeds.h). Policies, pages and metrics read the estimates and detect no
// slowness themselves.
//
// A round starts from the estimates of the round before. Decide keeps the value as the state named
// "estimates", journalled and saved like the states of policies. Pure functions of the
// coordinator's thread; linear in ranks.
#pragma once

#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "coordinator/estimates/slowness.h"
#include "coordinator/estimates/speeds.h"

namespace cox {

struct Estimates {
  static constexpr std::uint32_t kVersion = 5;
  Slowness slowness;
  Speeds speeds;  // empty if the plan does not divide the batch

  static auto fields(auto& self) {
    return message("Estimates", field(1, "slowness", self.slowness),
                   field(2, "speeds", self.speeds));
  }
  // Returns whether the numbers can have come from estimate().
  bool is_sane() const;
};

// Returns the estimates after a round. If `before` has another world size, starts from nothing.
// `plan` is the newest published one. REQUIRES: `summary` and `timings` were made from `signals`,
// whose ranks lie in the job's world.
Estimates estimate(Estimates before, const JobFacts& job, const Config& config, const Plan& plan,
                   const StepSignals& signals, const StepSummary& summary, Timings timings);
inline Estimates estimate(Estimates before, const JobFacts& job, const Config& config,
                          const Plan& plan, const StepSignals& signals,
                          const StepSummary& summary) {
  return estimate(std::move(before), job, config, plan, signals, summary,
                  timings_of(signals.reports));
}

// Returns the estimates for a new start of the job. Uses the restored estimates as a first guess.
Estimates after_restart(Estimates restored, const JobFacts& job);

// Returns the entry of a slow rank, or null. The entry lives as long as `estimates`.
const SlowRank* find_slow(const Estimates& estimates, RankId rank);

// Returns the ratio of the rank's own work to the expected work, averaged over some rounds. Returns
// 1 for a rank that is as fast as the others or unknown.
double slowdown_ratio(const Estimates& estimates, RankId rank);

}  // namespace cox
