#include "metrics/telemetry_state.h"

#include <limits>

#include "metrics/catalogue.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {
namespace {

constexpr std::int32_t kTablesEveryRound = 256;  // ranks; larger jobs update tables once a second
constexpr double kTableSeconds = 1.0;

// Returns a round's figures with the attendance of a later round. Last reports have no figures, so
// the job's last values are those of its last training.
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
  now_.peak_flops_per_device = peak_flops_per_device;
  now_.summary.loss = std::numeric_limits<double>::quiet_NaN();
  now_.summary.gradient_norm = now_.summary.loss;
  now_.job = std::make_shared<const JobFacts>(job);
  now_.plan = std::make_shared<const Plan>();
  publish();
}

void TelemetryState::record(const StepRecord& record) {
  const bool is_first = now_.state == JobState::waiting;
  if (*now_.job != record.job) now_.job = std::make_shared<const JobFacts>(record.job);
  now_.last_round_time = record.signals.now;
  const StepSummary& s = record.decision.summary;
  const bool over = s.reporting > 0 && s.finished == now_.job->world_size;
  now_.state = over ? JobState::finished : JobState::training;
  const bool has_figures = !over || is_first;
  now_.summary = has_figures ? s : with_attendance(now_.summary, s);
  now_.control = record.counters;
  const Plan& plan = record.plan;
  if (is_first || now_.plan->id != plan.id || now_.plan->activated_round != plan.activated_round)
    now_.plan = std::make_shared<const Plan>(plan);
  const Round round{record, has_figures, has_figures && are_tables_due(record)};
  for (const Topic& topic : topics()) {
    if (topic.follow != nullptr) topic.follow(round, now_);
  }
  publish();
}

void TelemetryState::set_stall(const std::optional<Stall>& stall, UnixTime now) {
  now_.views.set(stall ? std::make_shared<const StallView>(StallView{now, *stall}) : nullptr);
  publish();
}

void TelemetryState::finish() {
  now_.state = JobState::finished;
  set_stall(std::nullopt, {});
}

std::shared_ptr<const Snapshot> TelemetryState::snapshot() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void TelemetryState::set_last_step(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  last_step_ = step;
}

bool TelemetryState::are_tables_due(const StepRecord& record) {
  const UnixTime now = record.signals.now;
  const double age = tables_time_ ? now.seconds - tables_time_->seconds : kTableSeconds;
  const bool are_due =
      record.job.world_size <= kTablesEveryRound || age >= kTableSeconds || age < 0;
  if (are_due && !record.signals.reports.empty()) tables_time_ = now;
  return are_due;
}

void TelemetryState::publish() {
  {
    const std::lock_guard lock(mutex_);
    now_.views.set_all(set_);
    now_.last_step = last_step_;
  }
  std::shared_ptr<const Snapshot> fresh = std::make_shared<const Snapshot>(now_);
  {
    const std::lock_guard lock(mutex_);
    published_.swap(fresh);
  }
}

}  // namespace cox::metrics
