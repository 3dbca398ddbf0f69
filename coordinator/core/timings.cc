#include "coordinator/core/timings.h"

#include <algorithm>
#include <cmath>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

// One test for all: a sum of non-negative finite numbers is finite, and any other number spoils it.
bool is_usable(const RankSignal& s) {
  if (s.rounds == 0 || s.has(SignalFlag::finished)) return false;
  double sum = s.wall_seconds;
  double smallest = s.wall_seconds;
  for (const float seconds : s.phase_seconds) {
    sum += seconds;
    smallest = std::min<double>(smallest, seconds);
  }
  return std::isfinite(sum) && smallest >= 0;
}

void resize(Timings& timings, std::size_t n) {
  timings.ranks.resize(n);
  for (auto& column : timings.phases) column.resize(n);
  timings.own.resize(n);
  timings.wall.resize(n);
  timings.samples.resize(n);
  timings.report.resize(n);
}

}  // namespace

Timings timings_of(std::span<const RankSignal> reports) {
  Timings timings;
  resize(timings, reports.size());
  std::size_t n = 0;
  for (const RankSignal& s : reports) {
    if (!is_usable(s)) continue;
    const double per_round = 1.0 / s.rounds;
    double own = 0;
    for (std::size_t p = 0; p < kPhases; ++p) {
      const double seconds = s.phase_seconds[p] * per_round;
      timings.phases[p][n] = seconds;
      if (is_own_work(static_cast<Phase>(p))) own += seconds;
    }
    timings.own[n] = own;
    timings.wall[n] = s.wall_seconds * per_round;
    timings.ranks[n] = s.rank;
    timings.samples[n] = s.samples * per_round;
    timings.report[n] = static_cast<std::uint32_t>(&s - reports.data());
    ++n;
  }
  resize(timings, n);
  return timings;
}

Spread spread_of(std::span<const double> values, std::span<const RankId> ranks) {
  Spread spread;
  if (values.empty()) return spread;
  const Extremes extremes = extremes_of(values);
  spread.min = extremes.min;
  spread.max = extremes.max;
  const auto max = std::find(values.begin(), values.end(), spread.max);
  spread.rank_of_max = ranks[static_cast<std::size_t>(max - values.begin())];
  spread.count = static_cast<std::int32_t>(values.size());
  spread.median = spread.p95 = spread.max;
  if (spread.min == spread.max) return spread;
  const MedianAndTail at = median_and_tail_of(values);
  spread.median = at.median;
  spread.p95 = at.p95;
  return spread;
}

}  // namespace cox
