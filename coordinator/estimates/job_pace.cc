#include "coordinator/estimates/job_pace.h"

#include <algorithm>
#include <cmath>

#include "coordinator/estimates/bounds.h"
#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kLeastRounds = 32;       // a shorter baseline says nothing
constexpr double kBaselineMemory = 128;   // rounds
constexpr double kNoiseMemory = 256;      // rounds
constexpr double kRatioMemory = 32;       // rounds
constexpr double kPersistentRounds = 16;  // a shorter slowness is a pause of all ranks
constexpr double kBaselineMargin = 2.5;   // deviations by which a baseline may be wrong
constexpr double kCut = 3;                // deviations; larger residuals are cut
constexpr double kMostCorrelation = 0.95;

double correlation(const JobPace& pace) {
  return std::clamp(pace.covariance / pace.variance, 0.0, kMostCorrelation);
}

double long_run_variance(const JobPace& pace) {
  const double r = correlation(pace);
  return pace.variance * (1 + r) / (1 - r) * (1 + 2 * std::sqrt(2 / pace.rounds));
}

void learn_noise(JobPace& pace, double residual) {
  const double weight = std::max(1 / pace.rounds, 1 / kNoiseMemory);
  const double most = pace.rounds < 4 ? kLargestEstimate : kCut * std::sqrt(pace.variance);
  const double cut = std::clamp(residual, -most, most);
  const double square = cut * cut / (1 + 1 / pace.rounds);
  pace.variance = std::max(pace.variance + weight * (square - pace.variance), kLeastVariance);
  pace.covariance += weight * (cut * pace.last_residual - pace.covariance);
  pace.last_residual = cut;
}

void learn_past(JobPace& pace, double residual) {
  learn_noise(pace, residual);
  const double most = pace.rounds < 4 ? kLargestEstimate : kCut * std::sqrt(pace.variance);
  const double weight = std::max(1 / (pace.rounds + 1), 1 / kBaselineMemory);
  pace.baseline += weight * std::clamp(residual, -most, most);
  pace.rounds = std::min(pace.rounds + 1, kLargestEstimate);
}

// Updates the mean over the newest rounds, and the interval that their noise leaves.
void move_ratio(SlowJob& slow, double residual, double variance) {
  slow.rounds = std::min(slow.rounds + 1, kRatioMemory);
  const double before = portable_log(slow.slowdown_ratio);
  const double mean = before + (residual - before) / slow.rounds;
  const double error = k95 * std::sqrt(variance / slow.rounds);
  slow.slowdown_ratio = bounded_exp(mean);
  slow.slowdown_low = bounded_exp(mean - error);
  slow.slowdown_high = bounded_exp(mean + error);
}

// One round of a test: the residual and the resulting score.
struct Score {
  double residual = 0;
  double variance = 0;  // long-run
  double score = 0;
  CusumTest test;
};

Score score_of(const JobPace& pace, const PaceOfRound& now, double residual,
               const StragglerConfig& settings) {
  const double smallest = std::max(settings.slowdown_ratio,
                                   1 + settings.slowdown_seconds / std::max(now.seconds, 1e-9));
  const double variance = long_run_variance(pace);
  const double margin = kBaselineMargin / std::sqrt(std::min(pace.rounds, kBaselineMemory));
  Score score{residual, variance, 0,
              make_cusum_test(portable_log(smallest), std::sqrt(variance),
                              settings.false_alarms_per_rank_step)};
  score.score = residual / score.test.sigma - margin;
  return score;
}

void test_slower(JobPace& pace, const Score& score, const PaceOfRound& now) {
  const auto round = static_cast<double>(now.round.value());
  if (pace.sum == 0) {
    pace.since = round;
    pace.risen = 0;
  }
  pace.sum = cusum_step(pace.sum, score.score, score.test.k);
  pace.risen += score.residual;
  const double age = std::max(round - pace.since + 1, 1.0);
  if (pace.sum < score.test.h || age < std::max(kPersistentRounds, now.least_rounds)) return;
  SlowJob slow;
  slow.since = RoundId(static_cast<std::uint64_t>(std::clamp(pace.since, 0.0, round)));
  slow.rounds = std::min(age, kRatioMemory) - 1;
  slow.slowdown_ratio = bounded_exp(pace.risen / age);
  slow.rarity = cusum_rarity(pace.sum, score.test.k);
  pace.slow = slow;
}

// Returns whether the job is as fast as before again.
bool has_recovered(SlowJob& slow, const Score& score) {
  const double clipped = std::clamp(score.score, -kMaxScore, kMaxScore);
  slow.recovery = std::max(0.0, slow.recovery + score.test.k - clipped);
  return slow.recovery >= score.test.h;
}

JobPace begin_pace(const PaceOfRound& now, double pace) {
  JobPace fresh;
  fresh.plan = now.plan;
  fresh.rounds = 1;
  fresh.baseline = pace;
  return fresh;
}

}  // namespace

JobPace learn_pace(JobPace before, const PaceOfRound& now, const StragglerConfig& settings) {
  if (!(now.seconds_per_sample > 1e-12) || !(now.seconds_per_sample < 1e12)) return before;
  const double seen = portable_log(now.seconds_per_sample);
  if (before.rounds == 0 || before.plan != now.plan) return begin_pace(now, seen);
  JobPace pace = before;
  const double residual = seen - pace.baseline;
  if (pace.rounds >= kLeastRounds) {
    const Score score = score_of(pace, now, residual, settings);
    if (!pace.slow) test_slower(pace, score, now);
    if (pace.slow) {
      move_ratio(*pace.slow, residual, score.variance);
      if (!has_recovered(*pace.slow, score)) return pace;
      pace.slow.reset();
      pace.sum = 0;
    }
    if (pace.sum > score.test.h / 2) return pace;  // a possible slowness is no noise
  }
  learn_past(pace, residual);
  return pace;
}

bool JobPace::is_sane() const {
  const bool slow_is_sane =
      !slow || (is_ratio(slow->slowdown_ratio) && is_ratio(slow->slowdown_low) &&
                is_ratio(slow->slowdown_high) && is_amount(slow->rounds) && slow->rounds >= 1 &&
                is_bounded(slow->rarity) && is_amount(slow->recovery));
  return slow_is_sane && is_amount(rounds) && (rounds == 0 || rounds >= 1) &&
         std::fabs(baseline) <= 64 && is_amount(variance) &&
         (rounds < 2 || variance >= kLeastVariance) && is_bounded(covariance) &&
         is_bounded(last_residual) && is_amount(sum) && is_bounded(since) && is_bounded(risen);
}

}  // namespace cox
