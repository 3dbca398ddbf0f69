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

void count_fragment(const Fragment& fragment, StepSummary& into) {
  const auto kind = static_cast<std::size_t>(fragment.kind);
  if (kind < into.fragments.size()) ++into.fragments[kind];
}

void count_applying(const RankSignal& s, StepSummary& into) {
  if (!s.applies_plans()) return;
  const bool is_first = into.applying++ == 0;
  if (is_first || s.plan_applied < into.plan_applied_min) into.plan_applied_min = s.plan_applied;
  const bool is_less = into.loss_scale_min == 0 || s.loss_scale < into.loss_scale_min;
  if (s.loss_scale > 0 && is_less) into.loss_scale_min = s.loss_scale;
  if (s.memory_limit_bytes == 0) return;
  into.memory_peak_ratio =
      std::max(into.memory_peak_ratio, static_cast<double>(s.memory_peak_bytes) /
                                           static_cast<double>(s.memory_limit_bytes));
}

// Tallies values that need all reports at once.
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
    into.memory_limits_told = static_cast<std::int32_t>(memory_ranks_.size());
  }

 private:
  void add_loss(const RankSignal& s) {
    plain_ += s.loss;
    ++ranks_;
    if (!(s.weight > 0) || !std::isfinite(s.weight)) return;
    weighted_ += s.loss * s.weight;
    weight_ += s.weight;
  }

  // Weighted by the weight of each loss; evenly if no rank reports a weight.
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

// Keeps the few slowest in one pass over all ranks; ascending ranks keep ties in order.
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

// One test for all: a sum of non-negative finite numbers is finite, and any other number spoils the
// sum.
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

// Fills the columns of Timings, report by report.
class TimingsMaker {
 public:
  explicit TimingsMaker(std::span<const RankSignal> reports) : first_(reports.data()) {
    timings_.phases = Columns<kPhases>::unfilled(reports.size());
    resize(reports.size());
  }

  void add(const RankSignal& s) {
    if (!is_usable(s)) return;
    const std::size_t n = count_++;
    const double per_round = 1.0 / s.rounds;
    double own = 0;
    for (std::size_t p = 0; p < kPhases; ++p) {
      const double seconds = s.phase_seconds[p] * per_round;
      timings_.phases[p][n] = seconds;
      if (is_own_work(static_cast<Phase>(p))) own += seconds;
    }
    timings_.own[n] = own;
    timings_.wall[n] = s.wall_seconds * per_round;
    timings_.ranks[n] = s.rank;
    timings_.waiting[n] = part_of(Phase::communication, s, s.waiting_seconds) * per_round;
    timings_.recompute[n] = part_of(Phase::backward, s, s.recompute_seconds) * per_round;
    timings_.samples[n] = s.samples * per_round;
    timings_.report[n] = static_cast<std::uint32_t>(&s - first_);
    timings_.all_measure_waiting &=
        s.has(SignalFlag::waiting_measured) && !s.has(SignalFlag::without_queueing);
    timings_.watching += s.has(SignalFlag::watching);
    const std::uint64_t least = n == 0 ? s.plan_applied : timings_.plan_applied_min;
    timings_.plan_applied_min = std::min(least, s.plan_applied);
  }

  Timings finish() && {
    resize(count_);
    timings_.phases.keep_rows(count_);
    return std::move(timings_);
  }

 private:
  void resize(std::size_t n) {
    timings_.ranks.resize(n);
    timings_.own.resize(n);
    timings_.wall.resize(n);
    timings_.waiting.resize(n);
    timings_.recompute.resize(n);
    timings_.samples.resize(n);
    timings_.report.resize(n);
  }

  const RankSignal* first_;
  std::size_t count_ = 0;
  Timings timings_;
};

}  // namespace

Timings timings_of(std::span<const RankSignal> reports) {
  TimingsMaker maker(reports);
  for (const RankSignal& s : reports) maker.add(s);
  return std::move(maker).finish();
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

SeenRound see_round(const StepSignals& signals) {
  SeenRound seen;
  StepSummary& summary = seen.summary;
  summary.round = signals.round;
  summary.now = signals.now;
  summary.reporting = static_cast<std::int32_t>(signals.reports.size());
  for (const FaultyReport& fault : signals.faults) {
    summary.missing += fault.fault == ReportFault::missing;
  }
  Tally tally(signals.reports.size());
  TimingsMaker maker(signals.reports);
  for (const RankSignal& s : signals.reports) {
    count_report(s, summary);
    count_fragment(s.fragment, summary);
    count_applying(s, summary);
    tally.add(s);
    maker.add(s);
  }
  tally.finish(summary);
  seen.timings = std::move(maker).finish();

  const Timings& timings = seen.timings;
  for (std::size_t p = 0; p < kPhases; ++p) {
    summary.phases[p] = spread_of(timings.phases[p], timings.ranks);
  }
  summary.own_seconds = spread_of(timings.own, timings.ranks);
  summary.worst = worst_ranks(timings, summary);
  summary.wall_seconds = spread_of(timings.wall, timings.ranks);
  return seen;
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
