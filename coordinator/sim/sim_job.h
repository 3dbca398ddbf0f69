// SimJob: a whole training job without training: simulated ranks report, decide() decides, plans
// reach the ranks late and become active by agreement. One thread, a virtual clock, everything from
// the seed of its scenario. For tests and benchmarks of decisions.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/core/decide.h"
#include "coordinator/sim/random.h"
#include "coordinator/sim/scenario.h"

namespace cox::sim {

class SimJob {
 public:
  SimJob(Scenario scenario, Config config, PolicySet policies, Capabilities capabilities = {});

  // The reports that arrive in the current round, faults included, in a random order.
  std::vector<RankSignal> reports();

  // Decides on `signals` and goes on to the next round.
  Decision decide_on(const StepSignals& signals);

  // One whole round: reports, collect, decide.
  Decision round();

  const JobFacts& job() const { return job_; }
  const ControlState& state() const { return state_; }
  const Plan& active() const { return active_; }  // what all ranks do now
  RoundId now() const { return round_; }
  UnixTime clock() const { return {1.7e9 + clock_seconds_}; }

 private:
  RankSignal report_of(RankId rank, double common);
  double noise();
  void add_faults(const RankSignal& signal, std::vector<RankSignal>& arrived);
  void agree_on_plan();

  Scenario scenario_;
  Config config_;
  PolicySet policies_;
  JobFacts job_;
  Random random_;
  ControlState state_;
  Plan active_;
  std::vector<std::uint64_t> held_from_;  // round from which a rank holds the plan in flight
  RoundId round_{1};
  double clock_seconds_ = 0;
};

}  // namespace cox::sim
