#include "sdk/src/session/run_tally.h"

#include <algorithm>
#include <cmath>

#include "metrics/topics/memory.h"

namespace cox::detail {
namespace {

double own_seconds(const std::array<double, kPhases>& seconds) {
  double sum = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (is_own_work(static_cast<Phase>(p))) sum += seconds[p];
  }
  return sum;
}

}  // namespace

RunTally::RunTally(std::int32_t world_size, StepSink* next, RunPrice price)
    : next_(next), price_(price), seconds_(static_cast<std::size_t>(world_size), Sums{}) {}

void RunTally::record(const StepRecord& record) {
  add(record);
  if (next_ != nullptr) next_->record(record);
}

void RunTally::add(const StepRecord& record) {
  const std::scoped_lock lock(mutex_);
  for (const RankSignal& signal : record.signals.reports) {
    Sums& sums = seconds_[static_cast<std::size_t>(signal.rank.value())];
    for (std::size_t p = 0; p < kPhases; ++p) sums[p] += signal.phase_seconds[p];
  }
  newest_ = std::max(newest_, record.signals.now);
  const auto peak = static_cast<std::int64_t>(record.decision.summary.memory_peak_bytes);
  totals_.memory_measured_bytes = std::max(totals_.memory_measured_bytes, peak);
  add_memory(record);
  totals_.rounds = record.counters.rounds;
  totals_.plans = record.counters.plans_published;
  if (record.decision.effects != nullptr) effects_ = record.decision.effects;
  totals_.scores = record.decision.scores;
  for (const Reason& reason : record.decision.reasons) {
    ++totals_.decisions;
    totals_.last_reason = reason.text;
  }
}

void RunTally::add_memory(const StepRecord& record) {
  const std::size_t models = record.job.memory.models.size();
  if (priced_ == record.plan.id && models_ == models) return;
  priced_ = record.plan.id;
  models_ = models;
  const auto view = metrics::memory_view(record.job, record.plan, {});
  totals_.memory_planned = view != nullptr;
  if (!view) return;
  totals_.memory_peak_bytes = view->predicted_peak_bytes;
  totals_.memory_saved_bytes = view->saved_bytes;
  totals_.memory_added_ratio = std::isfinite(view->added_ratio) ? view->added_ratio : 0;
}

// Ranks run in step, so time that the plan adds on one rank is paid on all.
void RunTally::add_cost(SessionReport& report) const {
  const double hourly = price_.per_device_hour * static_cast<double>(seconds_.size());
  report.cost = hourly * std::max(0.0, newest_.seconds - price_.started.seconds) / 3600;
  report.memory_cost_hourly = hourly * report.memory_added_ratio / (1 + report.memory_added_ratio);
}

SessionReport RunTally::report() const {
  const std::scoped_lock lock(mutex_);
  SessionReport report = totals_;
  if (effects_ != nullptr) {
    for (const auto& effect : *effects_) report.effects.push_back(*effect);
  }
  add_cost(report);
  std::size_t slowest = 0;
  std::size_t fastest = 0;
  for (std::size_t r = 1; r < seconds_.size(); ++r) {
    if (own_seconds(seconds_[r]) > own_seconds(seconds_[slowest])) slowest = r;
    if (own_seconds(seconds_[r]) < own_seconds(seconds_[fastest])) fastest = r;
  }
  report.slowest_rank = static_cast<int>(slowest);
  const double least = own_seconds(seconds_[fastest]);
  if (least > 0) report.slowdown_ratio = own_seconds(seconds_[slowest]) / least;
  double most_lost = -1;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double lost = seconds_[slowest][p] - (slowest == fastest ? 0 : seconds_[fastest][p]);
    if (!is_own_work(static_cast<Phase>(p)) || lost <= most_lost) continue;
    most_lost = lost;
    report.slowest_phase = static_cast<Phase>(p);
  }
  return report;
}

}  // namespace cox::detail
