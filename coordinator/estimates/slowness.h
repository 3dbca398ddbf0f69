// Slowness: which ranks take longer for their work than they should, in which phase, since when and
// how surely. The part of the estimates (estimates.h) that compares ranks with each other. Pure;
// linear in ranks.
//
// Each channel (a rank's own work as a whole, and each phase of it) has an excess in every round:
// log(1 + (seconds - expected seconds) / expected own work), so that a phase says which part of the
// whole it costs. Expected is the median of the other ranks in the same round, because what slows
// all of them slows nobody; with one or two ranks it is the rank's own past. Waiting, rank 0's
// hosting and what memory actions cost are no own work (excess.h).
//
// Samples explain time: where ranks had unequal numbers of them, the excess is also taken between
// times at equal samples, and a rank is slow only if it was slow both ways, however much of a step
// depends on its samples. Once it is slow, only the time at equal samples counts, so it stays slow
// while a smaller share hides it.
//
// An excess is divided by its noise and feeds one CUSUM a channel (cusum.h). Noise is measured:
// residuals to each rank's own running level, cut at three deviations, pooled over ranks and
// rounds; a rank noisier than twice the pool (in variance) has its own. The stated rate of false
// alarms holds for each rank and step: half of it goes to the whole, half is split over the phases.
// The smallest slowdown worth naming is a ratio, or what a millisecond is of a round where that is
// more. Where noise is larger than that, a second CUSUM looks for slowdowns of two deviations, with
// half of the rate; it is sooner there, and what both find is confirmed by slow rounds that were
// counted, not by the sum. A rank is suspected when a CUSUM reaches its threshold, it has made
// min_rounds reports, and its work as a whole is up by half the smallest slowdown worth naming; it
// is confirmed when that has lasted for longer than pauses do (slow_rank.h), and over when the
// opposite test is as sure.
//
// A slowdown of all ranks at once slows nobody; the job's own past tells it (job_pace.h). Of two
// ranks, each is also compared with the other (RankPair). Not seen is, with one rank, anything
// from before its first reports; nor a rank that slows down but still works faster than the others
// for its samples (its speed is followed by speeds.h). Any number of ranks below half may be slow
// at once.
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

inline constexpr double kMostSlowRounds = 32;  // that are counted

// SlownessChannel is what is known of one channel. Columns have one entry per rank.
struct SlownessChannel {
  double pooled_variance = 0;
  double pooled_samples = 0;
  std::vector<double> level;     // running mean of the excess over 8 rounds
  std::vector<double> variance;  // of one round's excess around it
  std::vector<double> sum;       // CUSUM
  std::vector<double> since;     // the round in which `sum` last left 0
  // While noise is larger than the slowdown that is looked for; else without entries.
  std::vector<double> large_sum;    // CUSUM for slowdowns that stand out of that noise
  std::vector<double> slow_rounds;  // of late that stood out, less two for each that did not

  static auto fields(auto& self) {
    return message("SlownessChannel", field(1, "pooled_variance", self.pooled_variance),
                   field(2, "pooled_samples", self.pooled_samples), field(3, "level", self.level),
                   field(4, "variance", self.variance), field(5, "sum", self.sum),
                   field(6, "since", self.since), field(7, "large_sum", self.large_sum),
                   field(8, "slow_rounds", self.slow_rounds));
  }
};

// RankPair is the test of two ranks against each other: of the whole, at equal samples where those
// differ. It needs no past, so it sees what was slow from the start.
struct RankPair {
  double rounds = 0;    // in which both reported
  double variance = 0;  // of the difference of one round
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
  std::vector<SlowRank> watched;  // suspected, or recovered a while ago; ascending ranks
  JobPace pace;                   // the job as a whole against its own past
  Spells spells;                  // how long pauses last here
  RankPair other_rank;            // where there are two
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

// Returns the state in which nothing is known about `ranks` ranks.
Slowness fresh_slowness(std::size_t ranks);

// Returns whether every column has an entry for each of `ranks` ranks.
bool fits(const Slowness& slowness, std::size_t ranks);

// Returns what a new start of the job begins with. Its rounds count anew, so sums and the rounds in
// which they began are forgotten; levels, noise and who is slow stay as a first guess.
Slowness after_restart(Slowness slowness);

// Learns from one round. REQUIRES: `timings` and `summary` were made from the reports of `signals`;
// `before` fits the world; all ranks lie in it.
Slowness learn_slowness(Slowness before, const StepSignals& signals, Timings timings,
                        const StepSummary& summary, const SampleFacts& samples,
                        const StragglerConfig& settings);

}  // namespace cox
