// The steps of learn_slowness() in one round, in their order: the noise of each channel
// (channel_noise.cc), the tests against it (slowness_round.cc), of two ranks against each other
// (rank_pair.cc), and what follows for each rank (slow_verdicts.cc). Internal to slowness.h. Pure;
// linear in ranks.
//
// Columns by rank and columns by report lie side by side within a run of neighbouring ranks, so
// that loops over both are plain ones.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/slowness.h"

namespace cox {

inline constexpr double kLevelRounds = 8;  // that a running level remembers
inline constexpr double kNoisyRatio = 2;   // of variances, from which a rank has its own

// ---- Noise: the running level of each rank's excess in one channel, and how much a round differs
// from it. Robust, because a change of a rank's level is not noise, and an outlier counts as three
// deviations at most.

// LearningRates are the weights of a round in a rank's running values, in all channels. The number
// of the rank's reports decides them; ranks with many reports have the same.
struct LearningRates {
  double level = 1;     // weight of a round in the running level
  double variance = 0;  // in the variance; 0 = there is no level to compare with yet
  double residual = 1;  // a squared residual is too large by this factor
  friend bool operator==(const LearningRates&, const LearningRates&) = default;
};

// Neighbouring ranks that reported and learn at the same rates. Never so many that what is read of
// them more than once has left the nearest cache meanwhile.
struct RankRun {
  std::size_t rank = 0;    // the first one
  std::size_t report = 0;  // its place among the reports
  std::size_t size = 0;
  LearningRates rates;
};

// Returns the runs of these ranks, which are ascending. `reports` has the number of reports before
// this round of every rank of the world.
std::vector<RankRun> runs_of(std::span<const RankId> ranks, std::span<const double> reports);

// Moves levels, variances and the pool of a channel. Returns the variance that tests of this round
// should use for ordinary ranks: the pool, widened while it rests on few samples, or more when this
// round itself is wilder.
double learn_noise(SlownessChannel& channel, std::span<const RankRun> runs,
                   std::span<const double> excess);

// ---- Two ranks. Two cannot tell by a median who is unusual, and their own past does not know of
// what was slow from the start; the seconds of the other one at equal samples do. What is less than
// 15 % does not count, since no two machines are alike, and the two threads of one core are not
// either: the test is against that floor, not half of it.

inline constexpr double kRankPairRounds = 24;  // reports of both before one is suspected

// Returns the logarithm of the slowdown above which one counts, when `shift` is that of the
// settings.
double least_other_shift(double shift);

// Returns the test at the noise of now. `rate` is that of false alarms, per rank and round.
CusumTest rank_pair_test(const RankPair& other, double shift, double rate);

// Moves levels and noise. REQUIRES: both ranks reported.
void learn_rank_pair(RankPair& other, const Excess& excess);

// ---- A round.

// The facts that all channels of a round share.
struct Round : SpellRound {
  double rate = 0;  // of false alarms, per rank and round
  std::uint32_t min_reports = 0;
  bool own_past = false;
  std::vector<RankRun> runs;
  std::vector<SlowRank> entries;    // ranks that are suspected or confirmed; ascending
  std::vector<SlowRank> recovered;  // from earlier rounds; ascending ranks
  std::vector<double> place;        // per rank: 1 + its place among the entries; 0 = it has none
  std::vector<double> slow;         // per rank: as excess_of() wants it
};

// Whether noise is larger than the smallest slowdown worth naming. The test for that is slow even
// to find what stands out; a second one, for slowdowns of two deviations, is sooner there, and both
// share the rate of false alarms.
bool is_wild(const CusumScale& test);

// Returns the test of a channel at this variance of an excess.
CusumTest test_of(const Round& round, std::size_t channel, double variance);
// Returns the second test, for slowdowns of two deviations.
CusumTest large_test_of(const Round& round, std::size_t channel, double sigma);

// Returns the rank's place among the entries. REQUIRES: it has one.
inline std::size_t place_of(const Round& round, std::size_t rank) {
  return static_cast<std::size_t>(round.place[rank]) - 1;
}

// The ordinary tests of a round; those of channels that are not in use are empty.
using Tests = std::array<std::optional<CusumTest>, kChannels>;

// Forgets what tests have summed up about the rank.
void forget_sums(Slowness& slowness, std::size_t rank);

// Counts the reports and judges every rank of the round that is slow or may be. Entries that were
// not reported on stay as they are.
void judge(Slowness& slowness, Round& round, const Tests& tests, const Excess& excess);

}  // namespace cox
