// The parts of learn_slowness() in one round, in the order in which they run: the noise of each
// channel (channel_noise.cc), the tests against noise (slowness_round.cc), the tests of two ranks
// against each other (rank_pair.cc), and the verdict on each rank (slow_verdicts.cc). Internal to
// slowness.h. Pure; linear in ranks. Within a RankRun, columns by rank and columns by report are
// both contiguous, so loops can run over both.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/slowness.h"

namespace cox {

inline constexpr double kLevelRounds = 8;  // memory of a running level, in rounds
inline constexpr double kNoisyRatio = 2;   // of variances: from here on a rank uses its own

// ---- Noise: the running level of each rank's excess in one channel, and the deviation of a round
// from that level. Robust: a change of a rank's level is not noise, and an outlier counts as three
// deviations at most.

// LearningRates are the weights of a round in a rank's running values, in all channels. The weights
// depend on the number of the rank's reports; ranks with many reports have equal weights.
struct LearningRates {
  double level = 1;     // weight of a round in the running level
  double variance = 0;  // weight in the running variance; 0 = no level to compare with yet
  double residual = 1;  // factor by which a squared residual is too large; divided out
  friend bool operator==(const LearningRates&, const LearningRates&) = default;
};

// RankRun is a run of neighbouring ranks that reported and have equal learning rates. A run is
// short enough for its data to stay in the nearest cache between two reads.
struct RankRun {
  std::size_t rank = 0;    // the first rank
  std::size_t report = 0;  // index of the first rank's report
  std::size_t size = 0;
  LearningRates rates;
};

// Divides `ranks`, which are ascending, into runs. `reports` has the number of earlier reports of
// each rank of the world.
std::vector<RankRun> runs_of(std::span<const RankId> ranks, std::span<const double> reports);

// Updates the levels, variances and pool of a channel. Returns the variance for this round's tests
// of ordinary ranks: the pooled one, widened while the pool has few samples, or more if this round
// itself is wilder.
double learn_noise(SlownessChannel& channel, std::span<const RankRun> runs,
                   std::span<const double> excess);

// ---- Two ranks. The median of two ranks shows no outlier, and a rank's own past cannot show
// slowness from the start. The test compares the two ranks' seconds at equal samples. Differences
// below 15 % do not count: no two machines are equal, nor are the two threads of one core. The
// CUSUM subtracts this whole difference in each round, not half of it as other tests do.

inline constexpr double kRankPairRounds = 24;  // reports of both ranks before one is suspected

// Returns the logarithm of the slowdown above which one of two ranks counts as slow. `shift` is the
// logarithm of the smallest slowdown worth naming.
double least_other_shift(double shift);

// Returns the test at the present noise. `rate` is the rate of false alarms, per rank and round.
CusumTest rank_pair_test(const RankPair& other, double shift, double rate);

// Updates the levels and the noise. REQUIRES: both ranks reported.
void learn_rank_pair(RankPair& other, const Excess& excess);

// ---- A round.

// The facts of a round that all channels share.
struct Round : SpellRound {
  double rate = 0;  // rate of false alarms, per rank and round
  std::uint32_t min_reports = 0;
  bool own_past = false;
  std::vector<RankRun> runs;
  std::vector<SlowRank> entries;    // ranks that are suspected or confirmed; ascending
  std::vector<SlowRank> recovered;  // from earlier rounds; ascending ranks
  std::vector<double> place;        // per rank: 1 + index of its entry; 0 = no entry
  std::vector<double> slow;         // per rank: the argument of excess_of()
};

// Returns whether noise is larger than the smallest slowdown worth naming. The test for that
// slowdown is then slow, so a second test, for slowdowns of two deviations, finds large ones
// sooner. The two tests share the rate of false alarms.
bool is_wild(const CusumScale& test);

// Returns the test of a channel at this variance of an excess.
CusumTest test_of(const Round& round, std::size_t channel, double variance);
// Returns the second test, for slowdowns of two deviations.
CusumTest large_test_of(const Round& round, std::size_t channel, double sigma);

// Returns the index of the rank's entry. REQUIRES: the rank has one.
inline std::size_t place_of(const Round& round, std::size_t rank) {
  return static_cast<std::size_t>(round.place[rank]) - 1;
}

// The ordinary tests of a round. An unused channel has none.
using Tests = std::array<std::optional<CusumTest>, kChannels>;

// Clears the sums of the rank's tests.
void forget_sums(Slowness& slowness, std::size_t rank);

// Counts the reports, and judges each reporting rank that is slow or may be slow. Entries of ranks
// without a report stay as they are.
void judge(Slowness& slowness, Round& round, const Tests& tests, const Excess& excess);

}  // namespace cox
