// SlowRank: what is believed of one rank that is not ordinary, with its evidence in numbers: a
// spell of slowness from the round in which a test was reached (slowness.h) to its recovery. And
// Spells: how long a slowness must last before it is taken for one, because a machine pauses now
// and then.
//
// A test that is reached makes a rank suspected. It is confirmed when it has been slow for
// least_rounds(): seven, more of them where rounds are shorter than what a busy scheduler lets a
// thread wait, and longer than the pauses that this job has seen of late, by a margin that grows
// with their number, because their lengths have a heavy tail. Where rounds are short the margin is
// up to three times as large: a thread that has no core misses many of them, so pauses of very
// different lengths are all seen. Until then it is transient and nobody is named. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "coordinator/core/config.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/units.h"
#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/excess.h"

namespace cox {

inline constexpr std::uint64_t kLastRound = std::uint64_t{1} << 53;  // a later one counts as this

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
template <>
inline constexpr std::string_view kNameOf<SlowState> = "SlowState";
template <>
inline constexpr std::string_view kNameOf<SlowCourse> = "SlowCourse";
template <>
inline constexpr std::string_view kNameOf<ComparedWith> = "ComparedWith";

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
  double rounds = 0;               // behind that mean: the newest ones, at most 32
  double rarity = 0;               // noise alone looks like this once in 10^rarity rank-steps
  double recovery = 0;             // sum of the CUSUM against its being slow
  double surely_slow = 0;          // rounds before `suspected_at` that were slow for certain
  double slow_balance = 0;         // slow rounds since then, less 0.6 of all that were looked at
  std::uint32_t short_spells = 0;  // times that it was suspected and recovered unconfirmed

  Phase phase() const { return kOwnPhases[phase_index]; }

  static auto fields(auto& self) {
    return message(
        "SlowRank", field(1, "rank", self.rank), field(2, "state", self.state),
        field(3, "course", self.course), field(4, "against", self.against),
        field(5, "phase_index", self.phase_index), field(6, "since", self.since),
        field(7, "suspected_at", self.suspected_at), field(8, "phase_since", self.phase_since),
        field(9, "until", self.until), field(10, "slowdown_ratio", self.slowdown_ratio),
        field(11, "slowdown_low", self.slowdown_low),
        field(12, "slowdown_high", self.slowdown_high), field(13, "rounds", self.rounds),
        field(14, "rarity", self.rarity), field(15, "recovery", self.recovery),
        field(16, "surely_slow", self.surely_slow), field(17, "slow_balance", self.slow_balance),
        field(18, "short_spells", self.short_spells));
  }
  // Returns whether the numbers can have come from the functions below.
  bool is_sane() const;
};

// Spells is what is known of the pauses of a job's ranks.
struct Spells {
  double longest = 0;        // rounds, of a short spell of late
  double count = 0;          // of short spells of late
  double round_seconds = 0;  // that a round takes, running median

  static auto fields(auto& self) {
    return message("Spells", field(1, "longest", self.longest), field(2, "count", self.count),
                   field(3, "round_seconds", self.round_seconds));
  }
  bool is_sane() const;
  // Returns the rounds that a slowness must last to be confirmed.
  double least_rounds(const StragglerConfig& settings) const;
  // A round has passed: old spells are forgotten slowly.
  void pass_round(double seconds);
  // Learns from a rank that has recovered, if its spell was a short one, which those are that were
  // not confirmed, or only just. `wanted` is what least_rounds() was.
  void learn(const SlowRank& recovered, double wanted);
};

// SpellRound is what a round says to every spell.
struct SpellRound {
  double number = 0;
  double shift = 0;         // logarithm of the smallest slowdown worth naming
  double least_rounds = 0;  // as above
};

RoundId round_id(double number);

// ReachedTest is a CUSUM whose sum has reached its threshold.
struct ReachedTest {
  CusumTest test;
  double sum = 0;
  double since = 0;  // the round in which the sum left 0, or the slow rounds began
  // The rounds of late that were slow, where they were counted; else the sum tells how many.
  std::optional<double> slow_rounds{};
};

// Begins the evidence of a rank that has reached a test. `mean` is the logarithm of its slowdown
// since then, `variance` that of one round around it. REQUIRES: rank, since, suspected_at and
// rounds are set.
void begin_evidence(SlowRank& entry, const ReachedTest& reached, double mean, double variance);

// Adds a round's score against the slowness.
void add_recovery(SlowRank& entry, double score, double k);

// What a spell is judged by in a round.
struct SpellEvidence {
  double excess = 0;     // of this round, as a whole
  double variance = 0;   // of such a number
  double level = 0;      // running mean of the excess
  double threshold = 0;  // of `recovery`
};

// Takes a spell through a round: its size, and how often it was slow. A rank has recovered when
// `recovery` has reached its threshold; one that is only suspected, also when its level is back.
void add_round(SlowRank& entry, const SpellRound& round, const SpellEvidence& evidence);

// Confirms a suspected rank if it has lasted long enough and is still slow by `level`, the running
// mean of the excess.
void confirm(SlowRank& entry, const SpellRound& round, double level);

}  // namespace cox
