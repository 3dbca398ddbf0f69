// The test of two ranks against each other.
#include <algorithm>
#include <cmath>

#include "coordinator/estimates/bounds.h"
#include "coordinator/estimates/slowness_round.h"

namespace cox {
namespace {

constexpr double kLeastShift = 0.1397619423751587;  // log 1.15
constexpr double kNoiseRounds = 64;

}  // namespace

double least_other_shift(double shift) {
  return std::max(shift, kLeastShift);
}

CusumTest rank_pair_test(const RankPair& other, double shift, double rate) {
  const double wider = 1 + 2 * std::sqrt(2 / std::max(other.rounds, 1.0));
  const double sigma = std::sqrt(std::max(other.variance, kLeastVariance) * wider);
  return make_cusum_test(2 * least_other_shift(shift), sigma, rate);  // k is half of it
}

// The second rank's difference is nearly the negative of the first's, so the first is enough to
// learn the noise.
void learn_rank_pair(RankPair& other, const Excess& excess) {
  const double residual = excess.of_other[0][0] - other.level[0][0];
  if (other.rounds > 0) {
    const double steady = 1 + 1 / (2 * kLevelRounds - 1);
    const double square = residual * residual / std::max(steady, 1 + 1 / other.rounds);
    const double most = other.rounds < 4 ? kLargestEstimate : kSquareCut * other.variance;
    const double weight = std::max(1 / other.rounds, 1 / kNoiseRounds);
    other.variance += (std::min(square, most) - other.variance) * weight;
  }
  const double weight = std::max(1 / (other.rounds + 1), 1 / kLevelRounds);
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t r = 0; r < 2; ++r) {
      double& level = other.level[c][r];
      level += weight * (excess.of_other[c][r] - level);
    }
  }
  other.rounds = std::min(other.rounds + 1, kLargestEstimate);
}

bool RankPair::is_sane() const {
  return (rounds == 0 || rounds >= 1) && is_amount(rounds) && is_amount(variance) &&
         are_bounded(sum) && are_bounded(since) &&
         std::ranges::all_of(level, [](const auto& each) { return are_bounded(each); });
}

}  // namespace cox
