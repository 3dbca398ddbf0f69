// Slowness records which ranks take longer for their work than expected, in which phase, since when
// and how surely. Part of the estimates (estimates.h). Each channel of a rank (its work as a whole,
// and each phase) has an excess in every round (excess.h). The excess, divided by its noise, feeds
// one CUSUM per channel (cusum.h). A rank whose CUSUM reaches the threshold is suspected; a rank
// whose slowness lasts is confirmed (slow_rank.h). docs/stragglers.md has the rules and their
// limits. Pure; linear in ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "coordinator/estimates/excess.h"
#include "coordinator/estimates/job_pace.h"
#include "coordinator/estimates/slow_rank.h"

namespace cox {

inline constexpr double kMostSlowRounds = 32;  // largest count of slow rounds

// SlownessChannel is the state of one channel. Columns have one entry per rank.
struct SlownessChannel {
  double pooled_variance = 0;
  double pooled_samples = 0;
  std::vector<double> level;     // running mean of the excess over 8 rounds
  std::vector<double> variance;  // variance of one round's excess around the level
  std::vector<double> sum;       // CUSUM
  std::vector<double> since;     // the round in which `sum` last left 0
  // Used while noise is larger than the smallest slowdown worth naming; otherwise empty.
  std::vector<double> large_sum;    // CUSUM for slowdowns that stand out from the noise
  std::vector<double> slow_rounds;  // +1 for a round that stands out, -2 for another one

  static auto fields(auto& self) {
    return message("SlownessChannel", field(1, "pooled_variance", self.pooled_variance),
                   field(2, "pooled_samples", self.pooled_samples), field(3, "level", self.level),
                   field(4, "variance", self.variance), field(5, "sum", self.sum),
                   field(6, "since", self.since), field(7, "large_sum", self.large_sum),
                   field(8, "slow_rounds", self.slow_rounds));
  }
};

// RankPair is the test of two ranks against each other, by their work as a whole. If samples
// differ, the test compares seconds at equal samples. No past is needed, so the test finds a rank
// that is slow from the start.
struct RankPair {
  double rounds = 0;    // rounds in which both ranks reported
  double variance = 0;  // variance of the difference in one round
  // Running mean of each rank's excess over the other, by channel.
  std::array<std::array<double, 2>, kChannels> level{};
  std::array<double, 2> sum{};    // CUSUM
  std::array<double, 2> since{};  // the round in which `sum` last left 0

  static auto fields(auto& self) {
    return message("RankPair", field(1, "rounds", self.rounds), field(2, "variance", self.variance),
                   field(3, "level", self.level), field(4, "sum", self.sum),
                   field(5, "since", self.since));
  }
  bool is_sane() const;
};

struct Slowness {
  std::vector<SlowRank> slow;     // confirmed; ascending ranks
  std::vector<SlowRank> watched;  // suspected or recovered recently; ascending ranks
  JobPace pace;                   // the job as a whole against its own past
  Spells spells;                  // durations of this job's pauses
  RankPair other_rank;            // used with two ranks
  std::vector<double> reports;    // per rank: reports seen
  OwnPast own_past;
  std::array<SlownessChannel, kChannels> channels{};

  static auto fields(auto& self) {
    return message("Slowness", field(1, "slow", self.slow), field(2, "watched", self.watched),
                   field(3, "pace", self.pace), field(4, "spells", self.spells),
                   field(5, "other_rank", self.other_rank), field(6, "reports", self.reports),
                   field(7, "own_past", self.own_past), field(8, "channels", self.channels));
  }
  // Returns whether the numbers can have come from learn_slowness().
  bool is_sane() const;
};

// Returns the state of a job of `ranks` ranks before its first report.
Slowness fresh_slowness(std::size_t ranks);

// Returns whether every column has `ranks` entries.
bool fits(const Slowness& slowness, std::size_t ranks);

// Returns the state for a restart of the job. Clears sums and their first rounds, because the
// numbers of rounds start again. Keeps levels, noise and slow ranks as a first guess.
Slowness after_restart(Slowness slowness);

// Returns the state after one round. REQUIRES: `timings` and `summary` were made from the reports
// of `signals`; `before` fits the world; all ranks of `signals` are in the world.
Slowness learn_slowness(Slowness before, const StepSignals& signals, Timings timings,
                        const StepSummary& summary, const SampleFacts& samples,
                        const StragglerConfig& settings);

}  // namespace cox
