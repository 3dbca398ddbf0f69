// SlowRank: the belief about one rank that is suspected, confirmed or recovered, with the evidence.
// A spell of slowness reaches from the round in which a test was reached (slowness.h) to the
// recovery. Spells: how long a slowness must last to be confirmed, because a machine pauses now and
// then. A rank is suspected when a test is reached, and confirmed after least_rounds() slow rounds.
// Before confirmation a slowness is transient, and no rank is named. Pure.
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

inline constexpr std::uint64_t kLastRound = std::uint64_t{1} << 53;  // largest one that counts

enum class SlowState : std::uint8_t {
  suspected = 0,  // a test was reached; the slowness has not lasted long enough yet
  confirmed = 1,
  recovered = 2,  // the opposite test was reached
};
std::string_view to_string(SlowState state);

enum class SlowCourse : std::uint8_t {
  transient = 0,   // never confirmed: shorter than this machine's pauses
  persistent = 1,  // confirmed
};
std::string_view to_string(SlowCourse course);

enum class ComparedWith : std::uint8_t {
  others = 0,      // the median of the other ranks in the same round
  own_past = 1,    // with one or two ranks
  other_rank = 2,  // with two ranks: the other one's seconds at equal samples
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

// SlowRank is the belief about one rank that is suspected, confirmed or recovered.
struct SlowRank {
  RankId rank{-1};
  SlowState state = SlowState::suspected;
  SlowCourse course = SlowCourse::transient;
  ComparedWith against = ComparedWith::others;
  std::uint32_t phase_index = 0;  // into kOwnPhases: the phase that costs the rank most
  RoundId since{};                // the first slow round, as an estimate
  RoundId suspected_at{};
  RoundId phase_since{};      // the round in which the rank was found slow in that phase
  RoundId until{};            // recovered: the last slow round, as an estimate
  double slowdown_ratio = 1;  // own work over expected work, mean since the onset ...
  double slowdown_low = 1;    // ... and its 95 % interval
  double slowdown_high = 1;
  double rounds = 0;               // rounds in the mean: the newest ones, at most 32
  double rarity = 0;               // noise alone looks like this once in 10^rarity rank-steps
  double recovery = 0;             // sum of the CUSUM against slowness
  double surely_slow = 0;          // certainly slow rounds before `suspected_at`
  double slow_balance = 0;         // slow rounds since `suspected_at`, less 0.6 of all observed
  std::uint32_t short_spells = 0;  // times that the rank was suspected and recovered unconfirmed

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

// Spells is the record of the pauses of a job's ranks.
struct Spells {
  double longest = 0;        // rounds of the longest recent short spell
  double count = 0;          // of recent short spells
  double round_seconds = 0;  // duration of a round, running median

  static auto fields(auto& self) {
    return message("Spells", field(1, "longest", self.longest), field(2, "count", self.count),
                   field(3, "round_seconds", self.round_seconds));
  }
  bool is_sane() const;
  // Returns the rounds that a slowness must last to be confirmed: seven or more. Short rounds need
  // more, because a busy scheduler lets a thread wait for longer than such a round. The result also
  // exceeds the longest recent pause by a margin. The margin grows with the number of pauses,
  // because their lengths have a heavy tail. With short rounds the margin is up to three times as
  // large: a thread without a core misses many short rounds, so pauses of very different lengths
  // are all observed.
  double least_rounds(const StragglerConfig& settings) const;
  // Forgets old spells slowly. Call once a round.
  void pass_round(double seconds);
  // Learns from a recovered rank if its spell was at most four times `wanted`, the present result
  // of least_rounds().
  void learn(const SlowRank& recovered, double wanted);
};

// SpellRound is the part of a round that all spells share.
struct SpellRound {
  double number = 0;
  double shift = 0;         // logarithm of the smallest slowdown worth naming
  double least_rounds = 0;  // Spells::least_rounds()
};

RoundId round_id(double number);

// ReachedTest is a CUSUM whose sum has reached its threshold.
struct ReachedTest {
  CusumTest test;
  double sum = 0;
  double since = 0;  // the round in which the sum left 0, or the slow rounds began
  // Recent slow rounds, if they were counted. Otherwise the sum gives their number.
  std::optional<double> slow_rounds{};
};

// Begins the evidence of a rank that has reached a test. `mean` is the logarithm of its slowdown
// since the onset; `variance` belongs to one round around `mean`. REQUIRES: rank, since,
// suspected_at and rounds are set.
void begin_evidence(SlowRank& entry, const ReachedTest& reached, double mean, double variance);

// Adds a round's score against the slowness.
void add_recovery(SlowRank& entry, double score, double k);

// The evidence about a spell in one round.
struct SpellEvidence {
  double excess = 0;     // of this round, as a whole
  double variance = 0;   // of a round's excess
  double level = 0;      // running mean of the excess
  double threshold = 0;  // for `recovery`
};

// Updates a spell after a round: its size and its slow rounds. A rank has recovered when `recovery`
// has reached its threshold. A suspected rank has also recovered when its level is that of an
// ordinary rank again.
void add_round(SlowRank& entry, const SpellRound& round, const SpellEvidence& evidence);

// Confirms a suspected rank if its spell has lasted long enough and `level`, the running mean of
// the excess, still shows slowness.
void confirm(SlowRank& entry, const SpellRound& round, double level);

}  // namespace cox
