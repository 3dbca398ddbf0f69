// RankPair: the test of two ranks against each other. Two cannot tell by a median who is unusual,
// and their own past does not know of what was slow from the start; the seconds of the other one at
// equal samples do. What is less than 15 % does not count, since no two machines are alike, and the
// two threads of one core are not either: the test is against that floor, not half of it. A part of
// slowness.h. Pure.
#pragma once

#include <array>
#include <tuple>

#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/excess.h"

namespace cox {

inline constexpr double kRankPairRounds = 24;  // reports of both before one is suspected

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
    return std::tie(self.rounds, self.variance, self.level, self.sum, self.since);
  }
  bool is_sane() const;
};

// Returns the logarithm of the slowdown above which one counts, when `shift` is that of the
// settings.
double least_other_shift(double shift);

// Returns the test at the noise of now. `rate` is that of false alarms, per rank and round.
CusumTest rank_pair_test(const RankPair& other, double shift, double rate);

// Moves levels and noise. REQUIRES: both ranks reported.
void learn_rank_pair(RankPair& other, const Excess& excess);

}  // namespace cox
