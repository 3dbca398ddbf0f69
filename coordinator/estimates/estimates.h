// Estimates: what is believed about the ranks after a round, in one place. The stage between
// StepSummary and the policies: who is slow, in which phase, by how much, since when and how surely
// (slowness.h), and how fast each rank works on its samples, with its noise, what a step costs
// beside them, and whether a speed is changing just now (speeds.h). Policies, pages and metrics
// read these; nobody detects slowness for himself.
//
// What is believed after a round is what the next one starts from: Decide keeps the value from
// round to round as the state named "estimates", journalled and saved like those of policies. Pure
// functions of the coordinator's thread; linear in ranks.
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
  Speeds speeds;  // of no rank where the plan does not divide the batch

  static auto fields(auto& self) {
    return message("Estimates", field(1, "slowness", self.slowness),
                   field(2, "speeds", self.speeds));
  }
  // Returns whether the numbers can have come from estimate().
  bool is_sane() const;
};

// Returns the estimates after a round. `before` of another world size counts as fresh. `plan` is
// the newest published one. REQUIRES: `summary` and `timings` were made from `signals`, whose ranks
// lie in the job's world.
Estimates estimate(Estimates before, const JobFacts& job, const Config& config, const Plan& plan,
                   const StepSignals& signals, const StepSummary& summary, Timings timings);
inline Estimates estimate(Estimates before, const JobFacts& job, const Config& config,
                          const Plan& plan, const StepSignals& signals,
                          const StepSummary& summary) {
  return estimate(std::move(before), job, config, plan, signals, summary,
                  timings_of(signals.reports));
}

// Returns the estimates with which a new start of the job begins: what was restored is a first
// guess.
Estimates after_restart(Estimates restored, const JobFacts& job);

// Returns the rank's entry among those that are slow, or null when it is not slow. The entry lives
// as long as `estimates`.
const SlowRank* find_slow(const Estimates& estimates, RankId rank);

// Returns the rank's own work over what is expected, averaged over some rounds; 1 when it is as
// fast as the others or nothing is known of it.
double slowdown_ratio(const Estimates& estimates, RankId rank);

}  // namespace cox
