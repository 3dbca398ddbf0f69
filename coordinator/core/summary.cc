#include "coordinator/core/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

bool lost_numbers(const RankSignal& s) {
  if (s.has(SignalFlag::nonfinite_loss) || s.has(SignalFlag::nonfinite_gradient)) return true;
  const bool has_loss = s.weight != 0 && !s.has(SignalFlag::finished);  // no samples, no loss
  return has_loss && !std::isfinite(s.loss);
}

void count_report(const RankSignal& s, StepSummary& into) {
  into.step = std::max(into.step, s.step);
  into.rounds = std::max(into.rounds, s.rounds);
  into.finished += s.has(SignalFlag::finished);
  into.watching += s.has(SignalFlag::watching);
  into.skipped_ranks += s.has(SignalFlag::step_skipped);
  into.rolled_back_ranks += s.has(SignalFlag::rolled_back);
  into.repeated_ranks += s.has(SignalFlag::step_repeated);
  into.full_plan_wanted |= s.has(SignalFlag::full_plan_wanted);
  into.samples += s.samples;
  into.tokens += s.tokens;
  into.memory_peak_bytes = std::max(into.memory_peak_bytes, s.memory_peak_bytes);
  into.plan_applied_max = std::max(into.plan_applied_max, s.plan_applied);
  if (lost_numbers(s) && ++into.nonfinite_ranks == 1) into.first_nonfinite_rank = s.rank;
}

// Tallies what needs all reports at once, in one pass: at thousands of ranks the time goes
// into fetching them.
class Tally {
 public:
  explicit Tally(std::size_t reports) {
    memory_ranks_.reserve(reports);
    memory_used_.reserve(reports);
  }

  void add(const RankSignal& s) {
    if (!s.has(SignalFlag::watching)) held_ = std::min(held_, s.plan_held);
    if (s.memory_limit_bytes > 0) {
      memory_ranks_.push_back(s.rank);
      memory_used_.push_back(static_cast<double>(s.memory_used_bytes) /
                             static_cast<double>(s.memory_limit_bytes));
    }
    if (s.has(SignalFlag::finished)) return;
    if (std::isfinite(s.loss)) add_loss(s);
    if (std::isfinite(s.gradient_norm) && !(norm_ >= s.gradient_norm)) norm_ = s.gradient_norm;
  }

  void finish(StepSummary& into) const {
    into.plan_held_min = into.watching < into.reporting ? held_ : 0;
    into.loss = mean_loss();
    into.gradient_norm = norm_;
    into.memory_used_ratio = spread_of(memory_used_, memory_ranks_);
  }

 private:
  void add_loss(const RankSignal& s) {
    plain_ += s.loss;
    ++ranks_;
    if (!(s.weight > 0) || !std::isfinite(s.weight)) return;
    weighted_ += s.loss * s.weight;
    weight_ += s.weight;
  }

  // Weighted by what is behind each loss; evenly when no rank tells a weight.
  double mean_loss() const {
    const double mean = weight_ > 0 ? weighted_ / weight_ : ranks_ > 0 ? plain_ / ranks_ : kNone;
    return std::isfinite(mean) ? mean : kNone;
  }

  std::uint64_t held_ = std::numeric_limits<std::uint64_t>::max();
  double weighted_ = 0;
  double weight_ = 0;
  double plain_ = 0;
  std::int32_t ranks_ = 0;
  double norm_ = kNone;
  std::vector<RankId> memory_ranks_;
  std::vector<double> memory_used_;
};

Phase phase_lost_most(const Timings& timings, std::size_t i, const StepSummary& summary) {
  Phase worst = Phase::other;
  double lost_most = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (!is_own_work(static_cast<Phase>(p))) continue;
    const double lost = timings.phases[p][i] - summary.phases[p].median;
    if (lost > lost_most) {
      lost_most = lost;
      worst = static_cast<Phase>(p);
    }
  }
  return worst;
}

// Keeps the few slowest while passing over all ranks once; ascending ranks keep ties in order.
std::vector<std::size_t> slowest(const std::vector<double>& own) {
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (kept.size() == kWorstRanks && !(own[i] > own[kept.back()])) continue;
    if (kept.size() == kWorstRanks) kept.pop_back();
    const auto slower = [&own, i](std::size_t k) { return own[i] > own[k]; };
    kept.insert(std::ranges::find_if(kept, slower), i);
  }
  return kept;
}

std::vector<WorstRank> worst_ranks(const Timings& timings, const StepSummary& summary) {
  std::vector<WorstRank> worst;
  for (const std::size_t i : slowest(timings.own)) {
    const double median = summary.own_seconds.median;
    const double ratio = median > 0 ? timings.own[i] / median : 1;
    worst.push_back(
        {timings.ranks[i], phase_lost_most(timings, i, summary), timings.own[i], ratio});
  }
  return worst;
}

// One test for all: a sum of non-negative finite numbers is finite, and any other number spoils it.
bool is_usable(const RankSignal& s) {
  if (s.rounds == 0 || s.has(SignalFlag::finished)) return false;
  double sum = s.wall_seconds + s.waiting_seconds + s.recompute_seconds;
  double smallest = std::min({s.wall_seconds, static_cast<double>(s.waiting_seconds),
                              static_cast<double>(s.recompute_seconds)});
  for (const float seconds : s.phase_seconds) {
    sum += seconds;
    smallest = std::min<double>(smallest, seconds);
  }
  return std::isfinite(sum) && smallest >= 0;
}

// A part of a phase is no longer than the phase.
double part_of(Phase phase, const RankSignal& s, float seconds) {
  return std::min(seconds, s.phase_seconds[static_cast<std::size_t>(phase)]);
}

void resize(Timings& timings, std::size_t n) {
  timings.ranks.resize(n);
  timings.own.resize(n);
  timings.wall.resize(n);
  timings.waiting.resize(n);
  timings.recompute.resize(n);
  timings.samples.resize(n);
  timings.report.resize(n);
}

}  // namespace

Timings timings_of(std::span<const RankSignal> reports) {
  Timings timings;
  resize(timings, reports.size());
  timings.phases = Columns<kPhases>(reports.size());
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
    timings.waiting[n] = part_of(Phase::communication, s, s.waiting_seconds) * per_round;
    timings.recompute[n] = part_of(Phase::backward, s, s.recompute_seconds) * per_round;
    timings.samples[n] = s.samples * per_round;
    timings.report[n] = static_cast<std::uint32_t>(&s - reports.data());
    ++n;
  }
  resize(timings, n);
  timings.phases.keep_rows(n);
  return timings;
}

Spread spread_of(std::span<const double> values, std::span<const RankId> ranks) {
  Spread spread;
  if (values.empty()) return spread;
  const Extremes extremes = extremes_of(values);
  spread.min = extremes.min;
  spread.max = extremes.max;
  const auto max = std::ranges::find(values, spread.max);
  spread.rank_of_max = ranks[static_cast<std::size_t>(max - values.begin())];
  spread.count = static_cast<std::int32_t>(values.size());
  spread.median = spread.p95 = spread.max;
  if (spread.min == spread.max) return spread;
  const MedianAndTail at = median_and_tail_of(values);
  spread.median = at.median;
  spread.p95 = at.p95;
  return spread;
}

StepSummary summarize(const StepSignals& signals, const Timings& timings) {
  StepSummary summary;
  summary.round = signals.round;
  summary.now = signals.now;
  summary.reporting = static_cast<std::int32_t>(signals.reports.size());
  for (const FaultyReport& fault : signals.faults) {
    summary.missing += fault.fault == ReportFault::missing;
  }
  Tally tally(signals.reports.size());
  for (const RankSignal& s : signals.reports) {
    count_report(s, summary);
    tally.add(s);
  }
  tally.finish(summary);

  for (std::size_t p = 0; p < kPhases; ++p) {
    summary.phases[p] = spread_of(timings.phases[p], timings.ranks);
  }
  summary.own_seconds = spread_of(timings.own, timings.ranks);
  summary.worst = worst_ranks(timings, summary);
  summary.wall_seconds = spread_of(timings.wall, timings.ranks);
  return summary;
}

void History::add(const StepSummary& summary) {
  RoundFacts facts;
  facts.round = summary.round;
  facts.step = summary.step;
  facts.loss = summary.loss;
  facts.gradient_norm = summary.gradient_norm;
  facts.own_seconds_median = summary.own_seconds.median;
  facts.wall_seconds_median = summary.wall_seconds.median;
  facts.nonfinite_ranks = summary.nonfinite_ranks;
  facts.plan_applied = summary.plan_applied_max;
  add(facts);
}

void History::add(const RoundFacts& facts) {
  if (rounds_.size() == 2 * kCapacity) rounds_.erase(rounds_.begin(), rounds_.end() - kCapacity);
  rounds_.push_back(facts);
}

}  // namespace cox
