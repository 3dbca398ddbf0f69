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

void reserve(Timings& timings, std::size_t n) {
  timings.ranks.reserve(n);
  for (auto& column : timings.phases) column.reserve(n);
  timings.own.reserve(n);
  timings.wall.reserve(n);
}

}  // namespace

Timings timings_of(std::span<const RankSignal> reports) {
  Timings timings;
  reserve(timings, reports.size());
  for (const RankSignal& s : reports) {
    if (!is_usable(s)) continue;
    const double per_round = 1.0 / s.rounds;
    double own = 0;
    for (std::size_t p = 0; p < kPhases; ++p) {
      const double seconds = s.phase_seconds[p] * per_round;
      timings.phases[p].push_back(seconds);
      if (is_own_work(static_cast<Phase>(p))) own += seconds;
    }
    timings.own.push_back(own);
    timings.wall.push_back(s.wall_seconds * per_round);
    timings.ranks.push_back(s.rank);
  }
  return timings;
}

Spread spread_of(std::span<const double> values, std::span<const RankId> ranks) {
  Spread spread;
  if (values.empty()) return spread;
  const auto max = std::max_element(values.begin(), values.end());
  spread.min = *std::min_element(values.begin(), values.end());
  spread.max = *max;
  spread.rank_of_max = ranks[static_cast<std::size_t>(max - values.begin())];
  spread.count = static_cast<std::int32_t>(values.size());
  if (spread.min == spread.max) {
    spread.median = spread.p95 = spread.max;
    return spread;
  }
  spread.median = median_of(values);
  const double position = 0.95 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const Neighbours at = select(values, below);
  spread.p95 = at.lower + (at.upper - at.lower) * (position - static_cast<double>(below));
  return spread;
}

}  // namespace cox
