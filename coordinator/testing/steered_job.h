// SteeredJob: a simulated synchronous job whose steps take as long as its plan makes them, for
// tests of what decisions promise and bring. Times and peaks follow from the models in JobFacts
// (MemoryModel, BlockFormats), the plan's shares, scripted slowness and, where a test wants the
// truth to differ from the models, a factor of its own. Plans reach the ranks two rounds later. A
// virtual clock; everything follows from the seed. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/decide/decide.h"
#include "coordinator/testing/random.h"

namespace cox::testing {

// Noise of step times, as deviations of logarithms.
struct PaceNoise {
  double rank = 0.02;        // of each rank in each step
  double common = 0.01;      // of all ranks together
  double correlation = 0;    // of the common noise from step to step
  double pauses = 0;         // chance a rank and step of 1.2 to 2.5 times the time
  bool heavy_tails = false;  // the rank's noise is Student's t with 3 degrees of freedom
};

struct SteeredScenario {
  std::uint64_t seed = 1;
  double step_seconds = 0.1;   // of a rank's computing, where the job has no MemoryModel
  double sync_seconds = 0.01;  // of a step, beside computing
  PaceNoise noise{};
  // By what the rank's computing is slower; 1 = as fast as its model. Empty = all are.
  std::function<double(RankId rank, RoundId round)> slowdown;
  // What the machines of ranks tell of themselves, in every round. Empty = nothing.
  std::function<HostEvidence(RankId rank)> host;
  // What the plan makes of a step beyond the models, on all ranks. Empty = nothing.
  std::function<double(const Plan& plan)> truth;
};

class SteeredJob {
 public:
  // Asks the policies for the first plan. REQUIRES: a valid configuration.
  SteeredJob(SteeredScenario scenario, JobFacts job, Config config, PolicySet policies);

  // One step and the decision on it.
  Decision round();
  void rounds(std::uint64_t count);
  // Takes all states through their bytes, as a save does.
  void save_and_restore();

  // Seconds of a rank's computing and of a step under a plan, without noise.
  double rank_seconds(const Plan& plan, RankId rank) const;
  double step_seconds(const Plan& plan) const;

  const JobFacts& job() const { return job_; }
  const ControlState& state() const { return state_; }
  const Plan& active() const { return active_; }
  RoundId now() const { return round_; }
  const std::vector<Reason>& said() const { return said_; }
  // What decisions came to, after the last round.
  const Decision& last() const { return last_; }

 private:
  struct RankTime {
    double compute = 0;
    double recompute = 0;
  };
  RankTime time_of(const Plan& plan, RankId rank) const;
  std::uint64_t samples_of(const Plan& plan, RankId rank) const;
  std::int64_t peak_of(const Plan& plan, RankId rank) const;
  double rank_noise();
  RankSignal report_of(RankId rank, const RankTime& time, double wall_seconds) const;
  StepSignals signals();

  SteeredScenario scenario_;
  JobFacts job_;
  Config config_;
  PolicySet policies_;
  Random random_;
  ControlState state_;
  Plan active_;
  std::uint64_t applies_from_ = 0;
  double common_ = 0;  // the logarithm of the common noise of the last step
  double clock_seconds_ = 0;
  RoundId round_{1};
  std::vector<Reason> said_;
  Decision last_;
};

}  // namespace cox::testing
