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
double first_guess(std::span<const double> squares, const LearningRates& rates) {
  std::vector<double> known;
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (rates.variance[i] > 0) known.push_back(squares[i]);
  }
  return std::max(1.4826 * 1.4826 * median_of(known), kSmallest);
}

// Squared residuals of the ranks that have a level (0 of the others), and all levels moved on.
std::vector<double> squared_residuals(std::span<double> levels, std::span<const RankRun> runs,
                                      const LearningRates& rates, std::span<const double> excess) {
  std::vector<double> squares(excess.size());
  for (const RankRun& run : runs) {
    double* const level = &levels[run.rank];
    for (std::size_t i = run.report, r = 0; r < run.size; ++i, ++r) {
      const double residual = excess[i] - level[r];
      const double square = residual * residual / rates.residual[i];
      squares[i] = rates.variance[i] > 0 ? square : 0;
      level[r] += rates.level[i] * residual;
    }
  }
  return squares;
}

// Moves the variances of the ranks towards their squares.
void move_variances(std::span<double> variances, double pooled, std::span<const RankRun> runs,
                    const LearningRates& rates, std::span<const double> squares) {
  for (const RankRun& run : runs) {
    double* const variance = &variances[run.rank];
    for (std::size_t i = run.report, r = 0; r < run.size; ++i, ++r) {
      const double own = variance[r] == 0 ? pooled : variance[r];
      const double seen = std::min(squares[i], kCut * std::max(own, pooled));
      const double moved = own + (seen - own) * rates.variance[i];
      variance[r] = rates.variance[i] > 0 ? moved : variance[r];
    }
  }
}

}  // namespace

LearningRates learning_rates(StragglerMemory& memory, std::span<const RankRun> runs) {
  LearningRates rates;
  for (const RankRun& run : runs) {
    for (const double reports : memory.reports().subspan(run.rank, run.size)) {
      const bool is_known = reports > 0;
      rates.level.push_back(std::max(1 / (reports + 1), 1 / kLevelRounds));
      rates.variance.push_back(is_known ? std::max(1 / reports, 1 / kPoolRounds) : 0);
      rates.residual.push_back(is_known ? residual_factor(reports) : 1);
      rates.known += is_known;
    }
  }
  return rates;
}

double learn_noise(StragglerMemory& memory, std::size_t channel, std::span<const RankRun> runs,
                   const LearningRates& rates, std::span<const double> excess) {
  const std::vector<double> squares = squared_residuals(memory.level(channel), runs, rates, excess);
  double& pooled = memory.pooled_variance(channel);
  double& samples = memory.pooled_samples(channel);
  if (rates.known == 0) return samples == 0 ? 0 : pooled;
  if (samples == 0) pooled = first_guess(squares, rates);
  double total = 0;
  for (const double square : squares) total += std::min(square, kCut * pooled);
  move_variances(memory.variance(channel), pooled, runs, rates, squares);
  samples = std::min(samples + rates.known, kPoolRounds * rates.known);
  const double this_round = total / rates.known;
  pooled = std::max(
      pooled + (this_round - pooled) * std::max(rates.known / samples, 1 / kPoolRounds), kSmallest);
  return std::max(pooled * (1 + 2 * std::sqrt(2 / samples)), this_round / 2);
}

}  // namespace cox
