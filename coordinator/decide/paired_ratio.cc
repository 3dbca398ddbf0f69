#include "coordinator/decide/paired_ratio.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "coordinator/core/selection.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr std::size_t kLongBatch = 8;
constexpr std::size_t kShortBatch = 4;
constexpr std::size_t kShortStretch = 32;  // shorter stretches are cut into short batches
constexpr double kLargestCorrelation = 0.6;
constexpr double kSmallestDeviation = 1e-4;  // of a stretch: the precision of clocks
constexpr double kDeviationOfMad = 1.4826;   // of a normal value, in median absolute deviations

// Two-sided quantiles of Student's t for 95, 99 and 99.9 %, for 1 to 20 degrees of freedom.
constexpr std::array<std::array<double, 20>, 3> kStudent = {{
    {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
     2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086},
    {63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
     3.106,  3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845},
    {636.62, 31.599, 12.924, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587,
     4.437,  4.318,  4.221,  4.140, 4.073, 4.015, 3.965, 3.922, 3.883, 3.850},
}};

double student(Confidence confidence, double freedom) {
  const auto& quantiles = kStudent[static_cast<std::size_t>(confidence)];
  const double most = static_cast<double>(quantiles.size());
  const auto at = static_cast<std::size_t>(std::clamp(std::floor(freedom), 1.0, most)) - 1;
  return quantiles[at];
}

// Returns the medians of the logarithms of batches. An incomplete batch at the front is left out.
std::vector<double> batches_of(std::span<const double> seconds, std::size_t length) {
  std::vector<double> batches;
  std::vector<double> logs(length);
  for (std::size_t i = seconds.size() % length; i < seconds.size(); i += length) {
    std::ranges::transform(seconds.subspan(i, length), logs.begin(), portable_log);
    batches.push_back(median_of(logs));
  }
  return batches;
}

// A stretch of rounds as the mean of its batches.
struct Stretch {
  double count = 0;  // of batches
  double mean = 0;
  double squares = 0;   // around the mean, summed
  double products = 0;  // of neighbours around the mean, summed

  double variance_of_mean() const { return squares / (count - 1) / count; }
  double correlation() const { return squares > 0 ? products / squares : 0; }
};

Stretch stretch_of(const std::vector<double>& batches) {
  Stretch stretch;
  stretch.count = static_cast<double>(batches.size());
  for (const double batch : batches) stretch.mean += batch / stretch.count;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const double off = batches[i] - stretch.mean;
    stretch.squares += off * off;
    if (i > 0) stretch.products += off * (batches[i - 1] - stretch.mean);
  }
  return stretch;
}

// `correlation` is measured on `batches` batches. Adds the bias of short series.
double inflation(double correlation, double batches) {
  const double r = std::clamp(correlation + 2 / batches, 0.0, kLargestCorrelation);
  return (1 + r) / (1 - r);
}

double inflation(const Stretch& a, const Stretch& b) {
  const double count = a.count + b.count;
  return inflation((a.correlation() * a.count + b.correlation() * b.count) / count, count);
}

// The logarithm of the ratio, its variance, and the degrees of freedom of the variance.
struct Difference {
  double mean = 0;
  double variance = 0;
  double freedom = 1;
};

constexpr double kLeast = kSmallestDeviation * kSmallestDeviation;

// Welch's difference, with Satterthwaite's degrees of freedom.
Difference difference_of(std::span<const double> before, std::span<const double> after) {
  const std::size_t shorter = std::min(before.size(), after.size());
  const std::size_t length = shorter < kShortStretch ? kShortBatch : kLongBatch;
  const Stretch a = stretch_of(batches_of(before, length));
  const Stretch b = stretch_of(batches_of(after, length));
  const double va = std::max(a.variance_of_mean(), kLeast);
  const double vb = std::max(b.variance_of_mean(), kLeast);
  const double freedom =
      (va + vb) * (va + vb) / (va * va / (a.count - 1) + vb * vb / (b.count - 1));
  return {b.mean - a.mean, (va + vb) * inflation(a, b), freedom};
}

// Returns the difference of the long stretch to the short one, which borrows the long one's noise.
Difference difference_to_short(std::span<const double> few, std::span<const double> many) {
  const std::size_t length = many.size() < kShortStretch ? kShortBatch : kLongBatch;
  const Stretch a = stretch_of(batches_of(many, length));
  const double of_mean =
      std::max(a.variance_of_mean(), kLeast) * inflation(a.correlation(), a.count);
  const double of_few =
      of_mean * a.count * static_cast<double>(length) / static_cast<double>(few.size());
  return {a.mean - batches_of(few, few.size()).front(), of_mean + of_few, a.count - 1};
}

}  // namespace

RatioInterval paired_ratio(std::span<const double> before, std::span<const double> after,
                           Confidence confidence) {
  const std::size_t shorter = std::min(before.size(), after.size());
  const std::size_t longer = std::max(before.size(), after.size());
  if (shorter < kFewestPairedRounds || longer < kFewestLongRounds) return {};
  Difference change;
  if (shorter >= kFewestLongRounds) {
    change = difference_of(before, after);
  } else if (before.size() == shorter) {
    change = difference_to_short(before, after);
  } else {
    change = difference_to_short(after, before);
    change.mean = -change.mean;
  }
  const double half = student(confidence, change.freedom) * std::sqrt(change.variance);
  static constexpr double kFarthest = 60;  // largest argument for portable_exp
  const auto ratio = [](double x) { return portable_exp(std::clamp(x, -kFarthest, kFarthest)); };
  return {ratio(change.mean), ratio(change.mean - half), ratio(change.mean + half)};
}

double noise_of_series(std::span<const double> seconds) {
  constexpr std::size_t kFewest = 8;
  if (seconds.size() < kFewest) return 0;
  std::vector<double> steps;
  for (std::size_t i = 1; i < seconds.size(); ++i) {
    steps.push_back(std::abs(portable_log(seconds[i]) - portable_log(seconds[i - 1])));
  }
  return kDeviationOfMad * median_of(steps) / std::sqrt(2.0);
}

}  // namespace cox
