#include "coordinator/runtime/control_loop.h"

#include <algorithm>
#include <chrono>

#include "coordinator/wire/mask.h"

namespace cox::runtime {

ControlLoop::ControlLoop(ControlLoopParts parts)
    : parts_(std::move(parts)), published_(parts_.state.plan) {
  finished_.assign(static_cast<std::size_t>(parts_.job.world_size), 0);
}

void ControlLoop::run() {
  const auto late = std::chrono::duration_cast<std::chrono::nanoseconds>(
      Seconds(parts_.config.control.late_seconds));
  while (!stopping_.load()) {
    parts_.inbox->wait(expected_ranks(), late);
    turn();
  }
  turn();
}

void ControlLoop::turn() {
  const StepSignals signals = take_signals();
  if (signals.reports.empty()) return;
  const Decision decision = decide_round(signals);
  if (decision.plan) {
    publish(*decision.plan, Encoding::delta);
  } else if (decision.summary.full_plan_wanted || is_overdue(decision.summary)) {
    publish(parts_.state.plan, Encoding::full);
  }
  keep_record(signals, decision);
}

StepSignals ControlLoop::take_signals() {
  transport::CollectedSignals collected = parts_.inbox->collect();
  const RoundId round = round_to_judge(collected.signals, earliest_);
  StepSignals signals = collect(round, parts_.job.incarnation, parts_.job.world_size,
                                collected.signals, std::move(collected.evidence), parts_.now());
  std::erase_if(signals.faults, [this](const FaultyReport& f) {
    return f.fault == ReportFault::missing && finished_[static_cast<std::size_t>(f.rank.value())];
  });
  count(signals);
  return signals;
}

Decision ControlLoop::decide_round(const StepSignals& signals) {
  const auto before = std::chrono::steady_clock::now();
  const std::scoped_lock lock(state_mutex_);
  Decided decided =
      decide(parts_.job, parts_.config, parts_.policies, std::move(parts_.state), signals);
  parts_.state = std::move(decided.state);
  counters_.decide_seconds = Seconds(std::chrono::steady_clock::now() - before).count();
  ++counters_.rounds;
  earliest_ = signals.round.next();
  for (const RankSignal& report : signals.reports) {
    if (report.has(SignalFlag::finished))
      finished_[static_cast<std::size_t>(report.rank.value())] = 1;
  }
  return std::move(decided.decision);
}

void ControlLoop::publish(const Plan& plan, Encoding encoding) {
  const bool is_delta = encoding == Encoding::delta;
  auto frames = wire::encode_plan(plan, is_delta ? &published_ : nullptr);
  if (!frames.ok()) {
    parts_.log.on_change(LogLevel::error, "publish", frames.status().text());
    return;
  }
  for (const wire::Frame& frame : *frames) counters_.mask_bytes += frame.size;
  ++(is_delta ? counters_.plans_published : counters_.full_plans_resent);
  published_ = plan;
  published_in_ = counters_.rounds;
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& frame : *frames) set.push_back(frame.used());
  const Status out = parts_.outbox->publish(set);
  if (!out.ok()) parts_.log.on_change(LogLevel::error, "publish", out.text());
}

// A frame may be lost without anybody noticing; a plan that is not applied long after it went out
// goes out again.
bool ControlLoop::is_overdue(const StepSummary& summary) const {
  constexpr std::uint64_t kPatienceRounds = 16;
  const bool in_flight = summary.plan_applied_max < parts_.state.plan.id.number;
  const bool somebody_applies = summary.watching < summary.reporting;
  return in_flight && somebody_applies && counters_.rounds - published_in_ >= kPatienceRounds;
}

void ControlLoop::keep_record(const StepSignals& signals, const Decision& decision) {
  if (parts_.journal != nullptr) {
    const Status appended = parts_.journal->append(signals, decision);
    if (!appended.ok()) {
      ++counters_.journal_errors;
      parts_.log.on_change(LogLevel::error, "journal", appended.text());
    }
    counters_.journal_bytes = parts_.journal->bytes();
  }
  for (const Reason& reason : decision.reasons) parts_.log.info(reason.text);
  if (parts_.sink != nullptr) {
    parts_.sink->record({signals, decision, parts_.state.plan, parts_.job, counters_});
  }
}

void ControlLoop::count(const StepSignals& signals) {
  counters_.signal_bytes += signals.reports.size() * sizeof(RankSignal);
  for (const FaultyReport& fault : signals.faults) {
    switch (fault.fault) {
      case ReportFault::missing:
        ++counters_.missing_reports;
        break;
      case ReportFault::stale:
        ++counters_.stale_reports;
        break;
      case ReportFault::duplicate:
        ++counters_.duplicate_reports;
        break;
      default:
        ++counters_.damaged_reports;
    }
  }
}

std::int32_t ControlLoop::expected_ranks() const {
  const auto gone = std::count(finished_.begin(), finished_.end(), std::uint8_t{1});
  return std::max<std::int32_t>(1, parts_.job.world_size - static_cast<std::int32_t>(gone));
}

void ControlLoop::stop() {
  stopping_.store(true);
  parts_.inbox->ring();
}

ControlState ControlLoop::state() const {
  const std::scoped_lock lock(state_mutex_);
  return parts_.state;
}

RoundId round_to_judge(std::span<const RankSignal> reports, RoundId earliest) {
  RoundId newest = earliest;
  for (const RankSignal& report : reports) {
    const bool counts = check(report).ok() && !report.has(SignalFlag::watching);
    if (counts) newest = std::max(newest, report.round);
  }
  return newest;
}

}  // namespace cox::runtime
