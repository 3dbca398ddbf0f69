#include "metrics/telemetry_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "metrics/catalogue.h"
#include "metrics/decision_log.h"
#include "metrics/rank_table.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kUnseenNamed = 8;
constexpr std::int32_t kRefreshEveryRound = 256;  // ranks; larger jobs once a second
constexpr double kRefreshSeconds = 1.0;

double rate_per_second(const StepSummary& summary) {
  const double seconds = summary.wall_seconds.median * std::max<std::uint32_t>(summary.rounds, 1);
  const double amount = static_cast<double>(summary.tokens > 0 ? summary.tokens : summary.samples);
  return seconds > 0 && std::isfinite(seconds) ? amount / seconds : 0;
}

void count_code(std::vector<CodeCount>& codes, ReasonCode code) {
  auto at = std::lower_bound(codes.begin(), codes.end(), code,
                             [](const CodeCount& c, ReasonCode k) { return c.code < k; });
  if (at == codes.end() || at->code != code) at = codes.insert(at, CodeCount{code, 0});
  ++at->count;
}

}  // namespace

void RoundPoints::add(const RoundPoint& point) {
  points_[next_] = point;
  next_ = (next_ + 1) % kCapacity;
  size_ = std::min(size_ + 1, kCapacity);
}

double skew_ratio(const StepSummary& summary) {
  return summary.own_seconds.median > 0 ? summary.own_seconds.max / summary.own_seconds.median : 1;
}

TelemetryState::TelemetryState(const JobFacts& job, UnixTime started)
    : seen_(static_cast<std::size_t>(std::max(job.world_size, 0)), false) {
  now_.started = started;
  now_.first_loss = std::numeric_limits<double>::quiet_NaN();
  now_.summary.loss = now_.first_loss;
  now_.summary.gradient_norm = now_.first_loss;
  now_.totals.step_seconds = BucketCounts(step_buckets());
  now_.totals.decide_seconds = BucketCounts(control_buckets());
  now_.job = std::make_shared<const JobFacts>(job);
  now_.plan = std::make_shared<const Plan>();
  now_.decisions = std::make_shared<const DecisionList>();
  now_.ranks = std::make_shared<const RankTable>();
  now_.numerics = std::make_shared<const NumericsView>();
  mark_seen(StepSignals{});
  publish();
}

void TelemetryState::record(const StepRecord& record) {
  if (*now_.job != record.job) now_.job = std::make_shared<const JobFacts>(record.job);
  now_.summary = record.decision.summary;
  now_.last_round_time = record.signals.now;
  ++now_.records;
  const StepSummary& s = now_.summary;
  const bool over = s.reporting > 0 && s.finished == now_.job->world_size;
  now_.state = over ? JobState::finished : JobState::training;
  count(record);
  now_.numerics = numerics_.add(record);
  note_point(record);
  note_plan(record);
  note_memory(record);
  note_decisions(record);
  note_ranks(record);
  now_.costs = with_profiles(now_.costs, record.job.blocks.size(), record.signals);
  publish();
}

void TelemetryState::finish() {
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

void TelemetryState::publish() {
  {
    const std::lock_guard lock(mutex_);
    now_.held = held_;
  }
  std::shared_ptr<const Snapshot> fresh = std::make_shared<const Snapshot>(now_);
  {
    const std::lock_guard lock(mutex_);
    published_.swap(fresh);
  }
}

void TelemetryState::count(const StepRecord& record) {
  const StepSummary& summary = now_.summary;
  Totals& totals = now_.totals;
  totals.control = record.counters;
  totals.samples += summary.samples;
  totals.tokens += summary.tokens;
  if (summary.wall_seconds.count > 0 &&
      !totals.step_seconds.observe(summary.wall_seconds.median,
                                   std::max<std::uint32_t>(summary.rounds, 1)))
    ++totals.nonfinite_observations;
  if (!totals.decide_seconds.observe(record.counters.decide_seconds))
    ++totals.nonfinite_observations;
  if (std::isnan(now_.first_loss) && std::isfinite(summary.loss)) now_.first_loss = summary.loss;
  if (summary.skipped_ranks > 0) ++totals.skipped_rounds;
  if (summary.rolled_back_ranks > 0) ++totals.rollbacks;
  if (summary.repeated_ranks > 0) ++totals.repeated_rounds;
  if (summary.nonfinite_ranks > 0) count_trouble(record);
  for (const Reason& reason : record.decision.reasons) {
    const auto policy =
        std::min<std::size_t>(static_cast<std::size_t>(reason.policy), kPolicyKinds - 1);
    const auto outcome =
        std::min<std::size_t>(static_cast<std::size_t>(reason.outcome), kOutcomes - 1);
    ++totals.decisions[policy][outcome];
    count_code(totals.codes, reason.code);
  }
}

void TelemetryState::count_trouble(const StepRecord& record) {
  bool loss = false;
  bool gradient = false;
  for (const RankSignal& report : record.signals.reports) {
    loss |= report.has(SignalFlag::nonfinite_loss);
    gradient |= report.has(SignalFlag::nonfinite_gradient);
  }
  now_.totals.nonfinite_loss_rounds += loss ? 1 : 0;
  now_.totals.nonfinite_gradient_rounds += gradient ? 1 : 0;
}

void TelemetryState::note_point(const StepRecord& record) {
  const StepSummary& summary = now_.summary;
  if (summary.finished >= summary.reporting) return;  // nobody trained: only last words came
  now_.points.add({record.signals.round, summary.loss, summary.wall_seconds.median,
                   skew_ratio(summary), rate_per_second(summary), summary.plan_applied_max,
                   now_.numerics->loss_scale, summary.skipped_ranks > 0});
}

void TelemetryState::note_plan(const StepRecord& record) {
  PlanTimes& times = now_.plan_times;
  const auto is_active = [&times](const Plan& plan, RoundId in) {
    if (plan.id.number <= times.activated_plan) return;
    times.activated_plan = plan.id.number;
    const std::uint64_t from = times.published_round.value();
    times.activation_lag_rounds = in.value() > from ? in.value() - from : 0;
  };
  if (record.decision.plan) {
    // A plan is followed by another one only when all ranks apply it.
    is_active(*now_.plan, record.signals.round);
    times.last_published = record.signals.now;
    times.published_round = record.signals.round;
  }
  const Plan& plan = record.plan;
  if (plan.activated_round) is_active(plan, *plan.activated_round);
  if (now_.plan->id != plan.id || now_.plan->activated_round != plan.activated_round ||
      now_.records == 1)
    now_.plan = std::make_shared<const Plan>(plan);
}

// What is there of the view is kept as long as nothing it was made of has changed.
void TelemetryState::note_memory(const StepRecord& record) {
  const bool is_made = now_.memory && memory_made_of_ == MadeOf{now_.job, now_.plan} &&
                       has_budgets(*now_.memory, record.memory_budget_bytes);
  if (!is_made) {
    now_.memory = memory_view(*now_.job, *now_.plan, record.memory_budget_bytes);
    memory_made_of_ = {now_.job, now_.plan};
  }
  now_.headroom = now_.memory ? memory_headroom(*now_.memory, record.signals) : MemoryHeadroom{};
}

void TelemetryState::note_decisions(const StepRecord& record) {
  if (record.decision.reasons.empty()) return;
  now_.decisions = extended(*now_.decisions, record, kDecisions);
}

void TelemetryState::note_ranks(const StepRecord& record) {
  if (now_.ranks_seen < now_.job->world_size) mark_seen(record.signals);
  const double age = record.signals.now.seconds - now_.ranks->time.seconds;
  const bool due = age >= kRefreshSeconds || age < 0;
  if (now_.job->world_size > kRefreshEveryRound && now_.records > 1 && !due) return;
  now_.ranks = rank_table(record.signals, now_.summary);
  now_.parallel = parallel_view(*now_.job, record.signals, now_.parallel);
}

void TelemetryState::mark_seen(const StepSignals& signals) {
  seen_.resize(static_cast<std::size_t>(std::max(now_.job->world_size, 0)), false);
  for (const RankSignal& report : signals.reports) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    if (rank < seen_.size()) seen_[rank] = true;
  }
  now_.ranks_seen = static_cast<std::int32_t>(std::count(seen_.begin(), seen_.end(), true));
  now_.ranks_unseen.clear();
  for (std::size_t rank = 0; rank < seen_.size() && now_.ranks_unseen.size() < kUnseenNamed;
       ++rank) {
    if (!seen_[rank]) now_.ranks_unseen.emplace_back(static_cast<std::int32_t>(rank));
  }
}

}  // namespace cox::metrics
