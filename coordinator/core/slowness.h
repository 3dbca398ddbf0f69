// Slowness: which ranks take longer for their work than they should, in which phase, since when and
// how surely. The part of the estimates (estimates.h) that compares ranks with each other. Pure;
// linear in ranks.
//
// Each channel (a rank's own work as a whole, and each phase of it) has an excess in every round:
// log(1 + (seconds - expected seconds) / expected own work), so that a phase says which part of the
// whole it costs. Expected is the median of the other ranks in the same round, because what slows
// all of them slows nobody; with one or two ranks it is the rank's own past. Communication and rank
// 0's hosting are no own work.
//
// Samples explain time: where ranks had unequal numbers of them, the excess is also taken between
// times at equal samples, and a rank is slow only if it was slow both ways, however much of a step
// depends on its samples. Once it is slow, only the time at equal samples counts, so it stays slow
// while a smaller share hides it.
//
// An excess is divided by its noise and feeds one CUSUM a channel (cusum.h). Noise is measured:
// residuals to each rank's own running level, cut at three deviations, pooled over ranks and
// rounds; a rank noisier than twice the pool (in variance) has its own. Half of the stated rate of
// false alarms goes to the whole, half is split over the phases. The smallest slowdown worth naming
// is a ratio, or what a millisecond is of a round where that is more. A rank is slow when a CUSUM
// reaches its threshold, it has made min_rounds reports, and its work as a whole is up by half the
// smallest slowdown worth naming; it is over when the opposite test is as sure.
//
// It does not see a slowdown of all ranks at once, and, with one or two ranks, anything from before
// their first reports; nor a rank that slows down but still works faster than the others for its
// samples (its speed is followed by speeds.h). Any number of ranks below half may be slow at once.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/excess.h"
#include "coordinator/core/job_pace.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"

namespace cox {

enum class SlowState : std::uint8_t {
  suspected = 0,  // a test was reached; the slowness has not lasted long enough yet
  confirmed = 1,
  recovered = 2,  // the opposite test was reached
};
std::string_view to_string(SlowState state);

enum class SlowCourse : std::uint8_t {
  transient = 0,   // so far, or to the end: shorter than the pauses that this machine makes
  persistent = 1,  // it was confirmed
};
std::string_view to_string(SlowCourse course);

enum class ComparedWith : std::uint8_t {
  others = 0,      // the median of the other ranks in the same round
  own_past = 1,    // with one or two ranks
  other_rank = 2,  // with two ranks: seconds at equal samples of the other one
};
std::string_view to_string(ComparedWith reference);

template <>
inline constexpr SlowState kLargestOf<SlowState> = SlowState::recovered;
template <>
inline constexpr SlowCourse kLargestOf<SlowCourse> = SlowCourse::persistent;
template <>
inline constexpr ComparedWith kLargestOf<ComparedWith> = ComparedWith::other_rank;

// SlowRank is what is believed of one rank that is not ordinary, with its evidence in numbers.
struct SlowRank {
  RankId rank{-1};
  SlowState state = SlowState::suspected;
  SlowCourse course = SlowCourse::transient;
  ComparedWith against = ComparedWith::others;
  std::uint32_t phase_index = 0;  // into kOwnPhases: the phase that costs it most
  RoundId since{};                // the first slow round, as well as it can be told
  RoundId suspected_at{};
  RoundId phase_since{};      // the round in which it was found slow in that phase
  RoundId until{};            // recovered: the last slow round, as well as it can be told
  double slowdown_ratio = 1;  // its own work over what is expected, mean since the onset ...
  double slowdown_low = 1;    // ... and its 95 % interval
  double slowdown_high = 1;
  double rounds = 0;               // behind that mean: the newest ones, at most kRatioRounds
  double rarity = 0;               // noise alone looks like this once in 10^rarity rank-steps
  double recovery = 0;             // sum of the CUSUM against its being slow
  double surely_slow = 0;          // rounds before `suspected_at` that were slow for certain
  double slow_rounds = 0;          // since then, by more than half of what is worth naming
  std::uint32_t short_spells = 0;  // times that it was suspected and recovered unconfirmed

  Phase phase() const { return kOwnPhases[phase_index]; }

  static auto fields(auto& self) {
    return std::tie(self.rank, self.state, self.course, self.against, self.phase_index, self.since,
                    self.suspected_at, self.phase_since, self.until, self.slowdown_ratio,
                    self.slowdown_low, self.slowdown_high, self.rounds, self.rarity, self.recovery,
                    self.short_spells);
  }
};

// Columns have one entry per rank.
struct SlownessChannel {
  double pooled_variance = 0;
  double pooled_samples = 0;
  std::vector<double> level;     // running mean of the excess over 8 rounds
  std::vector<double> variance;  // of one round's excess around it
  std::vector<double> sum;       // CUSUM
  std::vector<double> since;     // the round in which `sum` last left 0

  static auto fields(auto& self) {
    return std::tie(self.pooled_variance, self.pooled_samples, self.level, self.variance, self.sum,
                    self.since);
  }
};

// OtherRank is the test of two ranks against each other: of the whole, at equal samples where those
// differ. It needs no past, so it sees what was slow from the start.
struct OtherRank {
  double rounds = 0;    // in which both reported
  double variance = 0;  // of the difference of one round
  // Running mean of each rank's excess over the other, by channel.
  std::array<std::array<double, 2>, kChannels> level{};
  std::array<double, 2> sum{};    // CUSUM
  std::array<double, 2> since{};  // the round in which `sum` last left 0

  static auto fields(auto& self) {
    return std::tie(self.rounds, self.variance, self.level, self.sum, self.since);
  }
  bool is_sane() const;
};

struct Slowness {
  std::vector<SlowRank> slow;     // confirmed; ascending ranks
  std::vector<SlowRank> watched;  // suspected, or recovered a while ago; ascending ranks
  JobPace pace;                   // the job as a whole against its own past
  double spell_rounds = 0;        // of the longest short spell of late, on any rank
  double spells = 0;              // short ones of late
  double round_seconds = 0;       // that a round takes, running median
  OtherRank other_rank;           // where there are two
  std::vector<double> reports;    // per rank: reports seen
  OwnPast own_past;
  std::array<SlownessChannel, kChannels> channels{};

  static auto fields(auto& self) {
    return std::tie(self.slow, self.watched, self.pace, self.spell_rounds, self.spells,
                    self.other_rank, self.reports, self.own_past, self.channels);
  }
  // Returns whether the numbers can have come from learn_slowness().
  bool is_sane() const;
};

// SlowHost is a node all of whose ranks are slow, which is rarely the fault of each of them.
struct SlowHost {
  NodeId node{};
  std::int32_t ranks = 0;     // of it that are confirmed or suspected: all that report
  RoundId since{};            // median of its ranks
  double slowdown_ratio = 1;  // likewise
};

// Returns the hosts whose ranks are all slow, ascending, where the job has more than one host.
// `node_of_rank` has an entry per rank, or is empty: all on one node. Hosts of one rank do not
// count: the rank says it.
std::vector<SlowHost> slow_hosts(const Slowness& slowness, std::span<const NodeId> node_of_rank);

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
