#include "coordinator/policies/slowdowns.h"

#include <algorithm>

#include "coordinator/core/portable_math.h"

namespace cox {
namespace {

constexpr std::size_t kLeaveOneOutBelow = 64;  // from there on one rank does not move the median
constexpr double kBaselineRounds = 128;        // how slowly the own past is forgotten
constexpr double kLeastRatio = 1e-3;           // a rank cannot count as faster than 1000 times
constexpr double kMostRatio = 1e3;

double log_ratio(double ratio) {
  return portable_log(std::min(std::max(ratio, kLeastRatio), kMostRatio));
}

const std::vector<double>& seconds_of(const Timings& timings, std::size_t channel) {
  if (channel == 0) return timings.own;
  return timings.phases[static_cast<std::size_t>(kOwnPhases[channel - 1])];
}

const Spread& spread_in(const StepSummary& summary, std::size_t channel) {
  if (channel == 0) return summary.own_seconds;
  return summary.phases[static_cast<std::size_t>(kOwnPhases[channel - 1])];
}

// Medians of all values but one. Which of the few candidates it is depends only on the half that
// the value left out lies in.
class MedianOfOthers {
 public:
  explicit MedianOfOthers(const std::vector<double>& values) {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t n = sorted.size();
    even_ = n % 2 == 0;
    const std::size_t m = n / 2;
    low_ = sorted[m - 1];
    middle_ = sorted[m];
    high_ = sorted[std::min(m + 1, n - 1)];
  }

  double without(double value) const {
    if (even_) return value <= low_ ? middle_ : low_;
    if (value == middle_) return (low_ + high_) / 2;
    return value < middle_ ? (middle_ + high_) / 2 : (low_ + middle_) / 2;
  }

 private:
  bool even_;
  double low_, middle_, high_;
};

// Excess of one channel from seconds, expected seconds of it and of the whole.
double excess_of(double seconds, double expected, double expected_own) {
  if (!(expected_own > 0)) return 0;
  return log_ratio(1 + (seconds - expected) / expected_own);
}

// Few ranks: each against the others.
std::vector<double> expected_of_others(const std::vector<double>& seconds) {
  const MedianOfOthers median(seconds);
  std::vector<double> expected;
  for (const double value : seconds) expected.push_back(median.without(value));
  return expected;
}

std::vector<double> excess_over_others(const std::vector<double>& seconds,
                                       const std::vector<double>& expected_own) {
  std::vector<double> excess = expected_of_others(seconds);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    excess[i] = excess_of(seconds[i], excess[i], expected_own[i]);
  }
  return excess;
}

// Many ranks: all against the same.
std::vector<double> excess_over(const std::vector<double>& seconds, double expected,
                                double expected_own) {
  std::vector<double> excess(seconds.size());
  if (!(expected_own > 0)) return excess;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    excess[i] = log_ratio(1 + (seconds[i] - expected) / expected_own);
  }
  return excess;
}

// Moves a baseline towards what was seen; outliers move it as far as a three-fold time would.
void learn(double& baseline, double seconds, double reports) {
  const double weight = std::max(1 / (reports + 1), 1 / kBaselineRounds);
  const double seen = reports > 0 ? std::min(seconds, 3 * baseline) : seconds;
  baseline += weight * (seen - baseline);
}

}  // namespace

Slowdowns against_others(const Timings& timings, const StepSummary& summary) {
  Slowdowns slowdowns;
  const bool few = timings.ranks.size() < kLeaveOneOutBelow;
  const std::vector<double> expected_own =
      few ? expected_of_others(timings.own) : std::vector<double>{};
  for (std::size_t c = 0; c < kChannels; ++c) {
    const Spread& spread = spread_in(summary, c);
    slowdowns.in_use[c] = spread.max > 0;
    if (!slowdowns.in_use[c]) continue;
    const std::vector<double>& seconds = seconds_of(timings, c);
    slowdowns.excess[c] = few ? excess_over_others(seconds, expected_own)
                              : excess_over(seconds, spread.median, spread_in(summary, 0).median);
  }
  return slowdowns;
}

Slowdowns against_own_past(const Timings& timings, StragglerMemory& memory) {
  Slowdowns slowdowns;
  const std::size_t n = timings.ranks.size();
  for (std::size_t c = kChannels; c-- > 0;) {  // the whole last: its baseline serves the phases
    slowdowns.in_use[c] = true;
    std::vector<double>& excess = slowdowns.excess[c];
    for (std::size_t i = 0; i < n; ++i) {
      const auto rank = static_cast<std::size_t>(timings.ranks[i].value());
      const double seconds = seconds_of(timings, c)[i];
      double& baseline = memory.baseline(c)[rank];
      const double reports = memory.reports()[rank];
      excess.push_back(reports > 0 ? excess_of(seconds, baseline, memory.baseline(0)[rank]) : 0.0);
      if (memory.named()[rank] == 0) learn(baseline, seconds, reports);
    }
    if (n == 2) {
      const double first = excess[0];
      excess[0] -= std::max(0.0, excess[1]);
      excess[1] -= std::max(0.0, first);
    }
  }
  return slowdowns;
}

}  // namespace cox
