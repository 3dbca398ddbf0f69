// SteeredJob: a simulated synchronous job whose step times follow its plan, for tests of the
// promises and effects of decisions. Times and peaks come from the models in JobFacts (MemoryModel,
// BlockFormats), the plan's shares and scripted slowness. An optional factor stands for a truth
// that differs from the models. A plan waits two rounds before it is active. A virtual clock; the
// seed determines everything. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/decide/decide.h"
#include "coordinator/testing/random.h"

namespace cox::testing {

// PaceNoise is the noise of step times, as deviations of logarithms.
struct PaceNoise {
  double rank = 0.02;        // per rank and step
  double common = 0.01;      // common to all ranks
  double correlation = 0;    // between the common noise of successive steps
  double pauses = 0;         // chance, per rank and step, of 1.2 to 2.5 times the time
  bool heavy_tails = false;  // draw the rank's noise from Student's t with 3 degrees of freedom
};

struct SteeredScenario {
  std::uint64_t seed = 1;
  double step_seconds = 0.1;   // computing time, without a MemoryModel
  double sync_seconds = 0.01;  // part of a step beside computing
  PaceNoise noise{};
  // Factor on the rank's computing time; 1 = the model's speed. Empty = 1 for all.
  std::function<double(RankId rank, RoundId round)> slowdown;
  // Evidence that a rank's host reports in every round. Empty = none.
  std::function<HostEvidence(RankId rank)> host;
  // Factor on all ranks' computing time that the models do not know. Empty = 1.
  std::function<double(const Plan& plan)> truth;
};

class SteeredJob {
 public:
  // Asks the policies for the first plan. REQUIRES: a valid configuration.
  SteeredJob(SteeredScenario scenario, JobFacts job, Config config, PolicySet policies);

  // Runs one step and decides on it.
  Decision round();
  void rounds(std::uint64_t count);
  // Encodes and decodes the policies' states, as a save and a resume do.
  void save_and_restore();

  // Returns the seconds of a rank's computing, or of a step, under a plan without noise.
  double rank_seconds(const Plan& plan, RankId rank) const;
  double step_seconds(const Plan& plan) const;

  const JobFacts& job() const { return job_; }
  const ControlState& state() const { return state_; }
  const Plan& active() const { return active_; }
  RoundId now() const { return round_; }
  const std::vector<Reason>& said() const { return said_; }
  // Returns the last round's decision.
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
  double common_ = 0;  // logarithm of the last step's common noise
  double clock_seconds_ = 0;
  RoundId round_{1};
  std::vector<Reason> said_;
  Decision last_;
};

}  // namespace cox::testing
