#include "coordinator/core/channel_noise.h"

#include <algorithm>
#include <cmath>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr double kPoolRounds = 64;           // memory of the noise
constexpr double kCut = 9;                   // squared: residuals count as 3 deviations at most
constexpr double kSmallestVariance = 1e-12;  // of clocks that repeat exactly

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
    if (rates.variance()[i] > 0) known.push_back(squares[i]);
  }
  return std::max(1.4826 * 1.4826 * median_of(known), kSmallestVariance);
}

// Writes the squared residuals of the ranks that have a level (0 of the others), and moves all
// levels on.
void take_residuals(std::span<double> levels, std::span<const RankRun> runs,
                    const LearningRates& rates, std::span<const double> excess,
                    std::span<double> squares) {
  const double* const weight = rates.level().data();
  const double* const factor = rates.residual().data();
  const double* const known = rates.variance().data();
  for (const RankRun& run : runs) {
    double* const level = &levels[run.rank];
    for (std::size_t i = run.report, r = 0; r < run.size; ++i, ++r) {
      const double residual = excess[i] - level[r];
      const double square = residual * residual / factor[i];
      squares[i] = known[i] > 0 ? square : 0;
      level[r] += weight[i] * residual;
    }
  }
}

// Moves the variances of the ranks towards their squares.
void move_variances(std::span<double> variances, double pooled, std::span<const RankRun> runs,
                    const LearningRates& rates, std::span<const double> squares) {
  const double* const weight = rates.variance().data();
  for (const RankRun& run : runs) {
    double* const variance = &variances[run.rank];
    for (std::size_t i = run.report, r = 0; r < run.size; ++i, ++r) {
      const double own = variance[r] == 0 ? pooled : variance[r];
      const double seen = std::min(squares[i], kCut * std::max(own, pooled));
      const double moved = own + (seen - own) * weight[i];
      variance[r] = weight[i] > 0 ? moved : variance[r];
    }
  }
}

}  // namespace

std::vector<RankRun> runs_of(std::span<const RankId> ranks) {
  std::vector<RankRun> runs;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<std::size_t>(ranks[i].value());
    if (runs.empty() || rank != runs.back().rank + runs.back().size) runs.push_back({rank, i, 0});
    ++runs.back().size;
  }
  return runs;
}

LearningRates learning_rates(std::span<const double> all_reports, std::span<const RankRun> runs) {
  const std::size_t size = runs.back().report + runs.back().size;
  LearningRates rates{Columns<3>(size)};
  const std::span<double> level = rates.columns[0];
  const std::span<double> variance = rates.columns[1];
  const std::span<double> residual = rates.columns[2];
  std::size_t known = 0;
  for (const RankRun& run : runs) {
    for (std::size_t i = run.report, r = run.rank; r < run.rank + run.size; ++i, ++r) {
      const double reports = all_reports[r];
      const bool is_known = reports > 0;
      level[i] = std::max(1 / (reports + 1), 1 / kLevelRounds);
      variance[i] = is_known ? std::max(1 / reports, 1 / kPoolRounds) : 0;
      residual[i] = is_known ? residual_factor(reports) : 1;
      known += is_known;
    }
  }
  rates.known = static_cast<double>(known);
  return rates;
}

double learn_noise(SlownessChannel& channel, std::span<const RankRun> runs,
                   const LearningRates& rates, std::span<const double> excess,
                   std::span<double> squares) {
  take_residuals(channel.level, runs, rates, excess, squares);
  double& pooled = channel.pooled_variance;
  double& samples = channel.pooled_samples;
  if (rates.known == 0) return samples == 0 ? 0 : pooled;
  if (samples == 0) pooled = first_guess(squares, rates);
  double total = 0;
  for (const double square : squares) total += std::min(square, kCut * pooled);
  move_variances(channel.variance, pooled, runs, rates, squares);
  samples = std::min(samples + rates.known, kPoolRounds * rates.known);
  const double this_round = total / rates.known;
  const double weight = std::max(rates.known / samples, 1 / kPoolRounds);
  pooled = std::max(pooled + (this_round - pooled) * weight, kSmallestVariance);
  return std::max(pooled * (1 + 2 * std::sqrt(2 / samples)), this_round / 2);
}

}  // namespace cox
