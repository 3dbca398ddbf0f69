// A simulated job whose step times follow its shares: ranks of scripted speeds, noise, late plans
// and lost reports, a virtual clock, decide() in the loop. Everything follows from one seed. Also
// adds up the time of a clairvoyant, who knows the speeds of every round.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "coordinator/decide/decide.h"
#include "coordinator/planner/share_assignment.h"
#include "coordinator/testing/random.h"

namespace cox::test {

struct SharesScenario {
  std::uint64_t seed = 1;
  std::int32_t ranks = 4;
  std::uint64_t global_batch = 64;
  std::uint64_t micro_batch = 0;
  // Returns the speed of a rank in a round: 1 = one sample in unit_seconds.
  std::function<double(std::int32_t rank, std::uint64_t round)> speed;
  double unit_seconds = 0.001;
  double fixed_seconds = 0;        // in every step, in forward and backward
  double optimizer_seconds = 0;    // in every step
  double noise = 0.03;             // deviation of the logarithm of a rank's time
  double common_noise = 0;         // the same, of all ranks together
  double pauses = 0;               // chance of a step of 1.2 to 2.5 times the time
  double missing = 0;              // chance that a report arrives late, with the next one
  std::uint32_t delay_rounds = 2;  // a plan reaches a rank after 0 to this many rounds
  std::map<std::int32_t, std::uint64_t> memory_limit;  // bytes; a rank needs 5000 and 1000 a sample
};

class SharesJob {
 public:
  SharesJob(SharesScenario scenario, Config config);

  // Runs one step and its decision.
  Decision round();
  // Runs one step in two parts, so that the test can change the reports.
  std::vector<RankSignal> reports();
  Decision decide_on(const std::vector<RankSignal>& arrived);

  JobFacts& job() { return job_; }
  const ControlState& state() const { return state_; }
  ControlState& state() { return state_; }
  const Plan& active() const { return active_; }
  std::uint64_t now() const { return round_.value(); }

  // The last round: every rank's units, and the noise-free step time over the best one.
  const std::vector<std::uint64_t>& units() const { return units_; }
  double over_ideal() const { return over_ideal_; }

  // Returns a clairvoyant's time over our own since the last call of forget().
  double throughput_ratio() const { return clairvoyant_seconds_ / seconds_; }
  void forget() { clairvoyant_seconds_ = seconds_ = 0; }
  int reshares() const { return reshares_; }
  const std::vector<Reason>& reasons() const { return reasons_; }

 private:
  std::vector<RankCost> costs() const;
  RankSignal report_of(std::size_t rank, const RankCost& cost, double seconds,
                       double step_seconds) const;
  void agree_on_plan();

  SharesScenario scenario_;
  Config config_;
  PolicySet policies_;
  JobFacts job_;
  testing::Random random_;
  ControlState state_;
  Plan active_;
  std::vector<std::uint64_t> held_from_;
  std::vector<RankSignal> late_;  // unsent reports by rank; no rounds = none
  RoundId round_{1};
  std::vector<std::uint64_t> units_;
  double over_ideal_ = 1;
  double seconds_ = 0;
  double clairvoyant_seconds_ = 0;
  int reshares_ = 0;
  std::vector<Reason> reasons_;
};

}  // namespace cox::test
