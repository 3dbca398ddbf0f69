// SimulatedJob: a whole training job without training, for tests and benchmarks of decisions.
// Simulated ranks report, decide() decides, plans reach the ranks late and become active by
// agreement. Everything follows from the seed of its scenario; time is a virtual clock. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "coordinator/core/decide.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/units.h"
#include "coordinator/testing/random.h"

namespace cox::testing {

inline constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

// Slowdown makes a rank slower in some rounds, by a part of its own work in a quiet round.
struct Slowdown {
  RankId rank{};
  std::optional<Phase> phase;  // where the extra time goes; empty = spread over all phases
  double extra_ratio = 0.05;   // of the rank's own work
  std::uint64_t from = 0;      // first round
  std::uint64_t until = kForever;
};

enum class NoiseKind {
  normal,   // logarithms are normal
  student,  // logarithms follow Student's t with 3 degrees of freedom, same deviation
  pauses,   // normal, and one step in a hundred takes 1.2 to 2.5 times as long
};

// Describes a simulated job; one seed decides everything that happens in it.
struct Scenario {
  std::uint64_t seed = 1;
  std::int32_t ranks = 8;
  std::size_t blocks = 12;
  PhaseSeconds phases = {0.002f, 0.03f, 0.06f, 0, 0.01f, 0.005f, 0.001f, 0};  // quiet round
  NoiseKind noise = NoiseKind::normal;
  double step_noise = 0.03;    // deviation of the logarithm of a rank's own work
  double phase_noise = 0.005;  // the same, of each phase on its own
  double common_noise = 0.02;  // the same, of all ranks together
  std::vector<Slowdown> slowdowns;

  // Chances per rank and round of what goes wrong with its report.
  double missing = 0;
  double duplicate = 0;
  double stale = 0;
  double damaged = 0;
  double nonfinite = 0;
  // Rounds with trouble of the whole job.
  std::uint64_t storm_from = kForever;   // every loss is NaN from here ...
  std::uint64_t storm_until = 0;         // ... to before here
  std::uint64_t finish_from = kForever;  // from here on the upper half of the ranks has finished
  bool watching = false;                 // no rank applies plans
  std::uint32_t plan_delay_rounds = 2;   // a plan reaches a rank after 0 to this many rounds
};

class SimulatedJob {
 public:
  SimulatedJob(Scenario scenario, Config config, PolicySet policies,
               Capabilities capabilities = {});

  // Returns the reports that arrive in the current round, faults included, in a random order.
  std::vector<RankSignal> reports();

  // Decides on `signals` and goes on to the next round.
  Decision decide_on(const StepSignals& signals);

  // Runs one whole round: reports, collect, decide.
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

}  // namespace cox::testing
