#include "coordinator/policies/noise.h"

#include <algorithm>
#include <cmath>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr double kPoolRounds = 64;   // memory of the noise
constexpr double kCut = 9;           // squared: residuals count as 3 deviations at most
constexpr double kSmallest = 1e-12;  // variance of clocks that repeat exactly

// A residual is taken against a level that is noisy itself: the mean of n values, or later an
// exponential mean.
double residual_factor(double reports) {
  constexpr double kSteady = 1 + 1 / (2 * kLevelRounds - 1);
  return std::max(kSteady, 1 + 1 / reports);
}

// The first guess, from the middle of one round, because nothing is known yet to cut outliers with.
double first_guess(std::vector<double> squares) {
  return 1.4826 * 1.4826 * median_of(squares);
}

void move_level(double& level, double reports, double excess) {
  level += std::max(1 / (reports + 1), 1 / kLevelRounds) * (excess - level);
}

// Squared residuals of the ranks that have a level, and their levels moved on.
std::vector<double> squared_residuals(StragglerMemory& memory, std::size_t channel,
                                      std::span<const std::size_t> ranks,
                                      std::span<const double> excess) {
  const auto level = memory.level(channel);
  const auto reports = memory.reports();
  std::vector<double> squares(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t rank = ranks[i];
    const double residual = excess[i] - level[rank];
    squares[i] = reports[rank] > 0 ? residual * residual / residual_factor(reports[rank]) : -1;
    move_level(level[rank], reports[rank], excess[i]);
  }
  return squares;
}

}  // namespace

double learn_noise(StragglerMemory& memory, std::size_t channel, std::span<const std::size_t> ranks,
                   std::span<const double> excess) {
  const std::vector<double> squares = squared_residuals(memory, channel, ranks, excess);
  std::vector<double> known;
  double& pooled = memory.pooled_variance(channel);
  double& samples = memory.pooled_samples(channel);
  if (samples == 0) {
    std::copy_if(squares.begin(), squares.end(), std::back_inserter(known),
                 [](double square) { return square >= 0; });
    if (known.empty()) return 0;
    pooled = std::max(first_guess(std::move(known)), kSmallest);
  }
  double total = 0;
  double count = 0;
  const auto variance = memory.variance(channel);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (squares[i] < 0) continue;
    total += std::min(squares[i], kCut * pooled);
    ++count;
    double& own = variance[ranks[i]];
    if (own == 0) own = pooled;
    const double seen = std::min(squares[i], kCut * std::max(own, pooled));
    own += (seen - own) * std::max(1 / memory.reports()[ranks[i]], 1 / kPoolRounds);
  }
  if (count == 0) return pooled;
  samples = std::min(samples + count, kPoolRounds * count);
  const double this_round = total / count;
  pooled = std::max(pooled + (this_round - pooled) * std::max(count / samples, 1 / kPoolRounds),
                    kSmallest);
  return std::max(pooled * (1 + 2 * std::sqrt(2 / samples)), this_round / 2);
}

}  // namespace cox
