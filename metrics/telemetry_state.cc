#include "metrics/telemetry_state.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cox::metrics {
namespace {

// Returns a round's figures with who reported in a later one: last reports have no figures, and the
// job's last values are those of its last training.
StepSummary with_attendance(StepSummary figures, const StepSummary& later) {
  figures.reporting = later.reporting;
  figures.finished = later.finished;
  figures.watching = later.watching;
  return figures;
}

}  // namespace

TelemetryState::TelemetryState(const JobFacts& job, UnixTime started, BuildInfo build,
                               double peak_flops_per_device) {
  now_.build = std::move(build);
  now_.started = started;
  now_.summary.loss = std::numeric_limits<double>::quiet_NaN();
  now_.summary.gradient_norm = now_.summary.loss;
  now_.operators.peak_flops_per_device = peak_flops_per_device;
  now_.job = std::make_shared<const JobFacts>(job);
  now_.plan = std::make_shared<const Plan>();
  now_.numerics = std::make_shared<const NumericsView>();
  now_.ranks.has_reported.resize(static_cast<std::size_t>(std::max(job.world_size, 0)), false);
  publish();
}

void TelemetryState::record(const StepRecord& record) {
  const bool is_first = now_.state == JobState::waiting;
  if (*now_.job != record.job) now_.job = std::make_shared<const JobFacts>(record.job);
  now_.last_round_time = record.signals.now;
  const StepSummary& s = record.decision.summary;
  const bool over = s.reporting > 0 && s.finished == now_.job->world_size;
  now_.state = over ? JobState::finished : JobState::training;
  const bool has_only_last_reports = over && !is_first;
  now_.summary = has_only_last_reports ? with_attendance(now_.summary, s) : s;
  now_.control = record.counters;
  if (s.repeated_ranks > 0) ++now_.repeated_rounds;
  now_.numerics = numerics_.add(record);
  now_.progress.add(record, now_.numerics->loss_scale);
  now_.plan_view.add(record, *now_.plan);
  const Plan& plan = record.plan;
  if (is_first || now_.plan->id != plan.id || now_.plan->activated_round != plan.activated_round)
    now_.plan = std::make_shared<const Plan>(plan);
  now_.decisions.add(record);
  now_.ranks.mark_seen(record);
  if (has_only_last_reports) return publish();
  add_memory(record);
  now_.ranks.slow = record.decision.slow;
  now_.ranks.hosts.add(record.signals, now_.ranks.slow);
  now_.heat.add(record);
  if (is_due(*now_.ranks.table, record)) {
    now_.ranks.table = rank_table(record.signals, s);
    now_.parallel = parallel_view(*now_.job, record.signals, now_.parallel);
    now_.operators = operators_view(record.signals, now_.operators);
  }
  publish();
}

void TelemetryState::set_stall(const std::optional<Stall>& stall, UnixTime now) {
  now_.stall = {now, stall ? std::make_shared<const Stall>(*stall) : nullptr};
  publish();
}

void TelemetryState::finish() {
  now_.stall = {};
  now_.state = JobState::finished;
  publish();
}

std::shared_ptr<const Snapshot> TelemetryState::snapshot() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void TelemetryState::set_held(const HeldBytes& held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
}

void TelemetryState::set_last_step(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  last_step_ = step;
}

void TelemetryState::set_operators(std::shared_ptr<const OperatorTable> operators) {
  const std::lock_guard lock(mutex_);
  operators_ = std::move(operators);
}

void TelemetryState::set_findings(std::shared_ptr<const FindingsView> findings) {
  const std::lock_guard lock(mutex_);
  findings_ = std::move(findings);
}

void TelemetryState::publish() {
  {
    const std::lock_guard lock(mutex_);
    now_.findings = findings_;
    now_.held = held_;
    now_.last_step = last_step_;
    now_.operators.table = operators_;
  }
  std::shared_ptr<const Snapshot> fresh = std::make_shared<const Snapshot>(now_);
  {
    const std::lock_guard lock(mutex_);
    published_.swap(fresh);
  }
}

// Keeps the view as long as nothing that it was made of has changed.
void TelemetryState::add_memory(const StepRecord& record) {
  const bool is_made = now_.memory && memory_made_of_ == MadeOf{now_.job, now_.plan} &&
                       has_budgets(*now_.memory, record.memory_budget_bytes);
  if (!is_made) {
    now_.memory = memory_view(*now_.job, *now_.plan, record.memory_budget_bytes);
    memory_made_of_ = {now_.job, now_.plan};
  }
  now_.headroom = now_.memory ? memory_headroom(*now_.memory, record.signals) : MemoryHeadroom{};
}

}  // namespace cox::metrics
