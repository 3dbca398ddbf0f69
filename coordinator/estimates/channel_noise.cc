// The noise of a channel: levels, variances and the pool.
#include <algorithm>
#include <cmath>

#include "coordinator/core/selection.h"
#include "coordinator/estimates/bounds.h"
#include "coordinator/estimates/slowness_round.h"

namespace cox {
namespace {

constexpr double kPoolRounds = 64;  // memory of the noise
constexpr std::size_t kLongestRun = 512;

// Returns the factor by which a squared residual is too large. The residual's level is noisy
// itself: a mean of n values, later an exponential mean.
double residual_factor(double reports) {
  constexpr double kSteady = 1 + 1 / (2 * kLevelRounds - 1);
  return std::max(kSteady, 1 + 1 / reports);
}

LearningRates rates_after(double reports) {
  LearningRates rates;
  rates.level = std::max(1 / (reports + 1), 1 / kLevelRounds);
  if (!(reports > 0)) return rates;
  rates.variance = std::max(1 / reports, 1 / kPoolRounds);
  rates.residual = residual_factor(reports);
  return rates;
}

bool has_level(const RankRun& run) {
  return run.rates.variance > 0;
}

// Returns the number of ranks that have a level.
double known_ranks(std::span<const RankRun> runs) {
  std::size_t known = 0;
  for (const RankRun& run : runs) known += has_level(run) ? run.size : 0;
  return static_cast<double>(known);
}

// Returns the first guess, from the middle of one round: no variance is known yet to cut outliers
// with.
double first_guess(std::span<const double> levels, std::span<const RankRun> runs,
                   std::span<const double> excess) {
  std::vector<double> squares;
  for (const RankRun& run : runs) {
    for (std::size_t i = 0; has_level(run) && i < run.size; ++i) {
      const double residual = excess[run.report + i] - levels[run.rank + i];
      squares.push_back(residual * residual / run.rates.residual);
    }
  }
  return std::max(1.4826 * 1.4826 * median_of(squares), kLeastVariance);
}

void begin_levels(SlownessChannel& channel, const RankRun& run, std::span<const double> excess) {
  double* const level = &channel.level[run.rank];
  for (std::size_t i = 0; i < run.size; ++i) {
    level[i] += run.rates.level * (excess[run.report + i] - level[i]);
  }
}

// Moves the levels of a run, and its variances towards the squared residuals. Returns `total` plus
// the squares, added in order, each at most nine times the pooled variance.
double move_levels(SlownessChannel& channel, double pooled, const RankRun& run,
                   std::span<const double> excess, double total) {
  const LearningRates rates = run.rates;
  const double* const seen = &excess[run.report];
  double* const level = &channel.level[run.rank];
  double* const variance = &channel.variance[run.rank];
  const double most = kSquareCut * pooled;
  for (std::size_t i = 0; i < run.size; ++i) {
    const double residual = seen[i] - level[i];
    const double square = residual * residual / rates.residual;
    level[i] += rates.level * residual;
    total += std::min(square, most);
    const double own = variance[i] == 0 ? pooled : variance[i];
    const double cut = std::min(square, kSquareCut * std::max(own, pooled));
    variance[i] = own + (cut - own) * rates.variance;
  }
  return total;
}

}  // namespace

std::vector<RankRun> runs_of(std::span<const RankId> ranks, std::span<const double> reports) {
  std::vector<RankRun> runs;
  double reports_before = -1;
  LearningRates rates;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<std::size_t>(ranks[i].value());
    if (reports[rank] != reports_before) rates = rates_after(reports[rank]);
    reports_before = reports[rank];
    const bool goes_on = !runs.empty() && runs.back().size < kLongestRun &&
                         rank == runs.back().rank + runs.back().size && rates == runs.back().rates;
    if (!goes_on) runs.push_back({rank, i, 0, rates});
    ++runs.back().size;
  }
  return runs;
}

double learn_noise(SlownessChannel& channel, std::span<const RankRun> runs,
                   std::span<const double> excess) {
  double& pooled = channel.pooled_variance;
  double& samples = channel.pooled_samples;
  const double known = known_ranks(runs);
  if (known > 0 && samples == 0) pooled = first_guess(channel.level, runs, excess);
  double total = 0;
  for (const RankRun& run : runs) {
    if (has_level(run)) {
      total = move_levels(channel, pooled, run, excess, total);
    } else {
      begin_levels(channel, run, excess);
    }
  }
  if (known == 0) return samples == 0 ? 0 : pooled;
  samples = std::min(samples + known, kPoolRounds * known);
  const double this_round = total / known;
  const double weight = std::max(known / samples, 1 / kPoolRounds);
  pooled = std::max(pooled + (this_round - pooled) * weight, kLeastVariance);
  return std::max(pooled * (1 + 2 * std::sqrt(2 / samples)), this_round / 2);
}

}  // namespace cox
