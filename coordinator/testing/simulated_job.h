// SimulatedJob: a training job without training, for tests and benchmarks of decisions. Simulated
// ranks report, decide() decides, and plans reach the ranks late and become active by agreement.
// The scenario's seed determines everything; time is a virtual clock. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/units.h"
#include "coordinator/decide/decide.h"
#include "coordinator/testing/random.h"

namespace cox::testing {

inline constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

// SlowShape is the course of a Slowdown's extra time over the rounds.
enum class SlowShape {
  step,    // all of the extra time at once
  ramp,    // growing for `period_rounds`
  on_off,  // for `on_rounds` of every `period_rounds`: pauses, flicker
  wave,    // smoothly between nothing and all of the extra time: thermal throttling
};

// Slowdown makes a rank slower in some rounds. The extra time is a ratio of the rank's own work in
// a quiet round.
struct Slowdown {
  RankId rank{};
  std::optional<Phase> phase;  // phase of the extra time; empty = all phases
  double extra_ratio = 0.05;   // ratio to the rank's own work
  std::uint64_t from = 0;      // first round
  std::uint64_t until = kForever;
  SlowShape shape = SlowShape::step;
  std::uint32_t on_rounds = 1;
  std::uint32_t period_rounds = 20;

  // Returns the part of `extra_ratio` that applies in a round, 0 .. 1.
  double part_in(std::uint64_t round) const;
};

// Bursts are scheduling noise, as on a machine with more programs than cores. Any rank is hit now
// and then, and is then slower for some rounds in a row. Lengths have a heavy tail.
struct Bursts {
  double chance = 0;        // per rank and round, of a burst
  double least_rounds = 3;  // shortest length; lengths follow Pareto's law with exponent 1.5
  double most_ratio = 8;    // largest ratio of a burst's time to quiet time; uniform from 1.5 on
};

enum class NoiseKind {
  normal,   // logarithms are normal
  student,  // logarithms follow Student's t with 3 degrees of freedom and the same deviation
  pauses,   // normal, and one step in a hundred takes 1.2 to 2.5 times as long
};

enum class WaitingKind {
  none,      // ranks do not wait for each other
  hidden,    // ranks wait for the slowest, and reports count the waiting as communication
  measured,  // the same, and SignalFlag::waiting_measured reports the waiting time
};

// Scenario describes a simulated job. One seed determines all events in it.
struct Scenario {
  std::uint64_t seed = 1;
  std::int32_t ranks = 8;
  std::size_t blocks = 12;
  PhaseSeconds phases = {0.002f, 0.03f, 0.06f, 0, 0.01f, 0.005f, 0.001f, 0};  // in a quiet round
  NoiseKind noise = NoiseKind::normal;
  double step_noise = 0.03;    // deviation of the logarithm of a rank's own work
  double phase_noise = 0.005;  // the same for each phase on its own
  double common_noise = 0.02;  // the same for all ranks together
  std::vector<Slowdown> slowdowns;
  Bursts bursts;
  std::vector<std::uint32_t> samples;  // per rank and step; empty = 8 each, the work of `phases`
  std::vector<double> recompute;       // per rank: extra part of backward, by plan; empty = none
  std::int32_t ranks_per_node = 0;     // 0 = all on one node
  WaitingKind waiting = WaitingKind::none;  // waiting inside the communication phase

  // Chances of faults in a report, per rank and round.
  double missing = 0;
  double duplicate = 0;
  double stale = 0;
  double damaged = 0;
  double nonfinite = 0;
  // Rounds with trouble for the whole job.
  std::uint64_t storm_from = kForever;   // every loss is NaN from here on ...
  std::uint64_t storm_until = 0;         // ... and before here
  std::uint64_t finish_from = kForever;  // the upper half of the ranks has finished from here on
  bool watching = false;                 // no rank applies plans
  std::uint32_t plan_delay_rounds = 2;   // a plan reaches a rank after 0 to this many rounds
};

class SimulatedJob {
 public:
  SimulatedJob(Scenario scenario, Config config, PolicySet policies,
               Capabilities capabilities = {});

  // Returns the reports that arrive in the current round, with faults, in a random order.
  std::vector<RankSignal> reports();

  // Returns the reports of the current round without faults, in rank order.
  StepSignals signals();
  // Advances to the next round without a decision.
  void skip();

  // Decides on `signals` and advances to the next round.
  Decision decide_on(const StepSignals& signals);

  // Runs one whole round: reports, collect, decide.
  Decision round();

  const JobFacts& job() const { return job_; }
  const ControlState& state() const { return state_; }
  const Plan& active() const { return active_; }  // active on all ranks
  RoundId now() const { return round_; }
  UnixTime clock() const { return {1.7e9 + clock_seconds_}; }

 private:
  RankSignal report_of(RankId rank, double common);
  double noise();
  double burst_factor(std::size_t rank);
  void add_waiting(std::vector<RankSignal>& reports) const;
  void add_faults(const RankSignal& signal, std::vector<RankSignal>& arrived);
  void agree_on_plan();

  Scenario scenario_;
  Config config_;
  PolicySet policies_;
  JobFacts job_;
  Random random_;
  ControlState state_;
  Plan active_;
  struct Burst {
    std::uint64_t until = 0;
    double factor = 1;
  };
  std::vector<Burst> bursts_;             // per rank
  std::vector<std::uint64_t> held_from_;  // per rank: holds the new plan from here
  RoundId round_{1};
  double clock_seconds_ = 0;
};

}  // namespace cox::testing
