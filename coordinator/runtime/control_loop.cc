#include "coordinator/runtime/control_loop.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "coordinator/policies/memory/memory.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {
namespace {

struct Failure {
  const char* topic;
  const char* consequence;
};

void tell(Log& log, const Failure& failure, const char* what) noexcept try {
  log.on_change(LogLevel::error, failure.topic, std::string(failure.consequence) + ": " + what);
} catch (...) {
  // No memory for a message is no reason to end the job.
}

template <class Work>
bool succeeds(Log& log, const Failure& otherwise, const Work& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    tell(log, otherwise, error.what());
  } catch (...) {
    tell(log, otherwise, "an exception of unknown type");
  }
  return false;
}

}  // namespace

ControlLoop::ControlLoop(ControlLoopParts parts)
    : parts_(std::move(parts)),
      ranks_left_(parts_.job.world_size),
      late_(parts_.job.world_size),
      published_(parts_.state.plan) {
  finished_.assign(static_cast<std::size_t>(parts_.job.world_size), 0);
}

void ControlLoop::run() {
  while (!stopping_.load()) {
    wait_for_round();
    turn();
  }
  turn();
}

void ControlLoop::wait_for_round() {
  const auto late = std::chrono::duration_cast<std::chrono::nanoseconds>(
      Seconds(parts_.config.control.late_seconds));
  const std::int32_t expected = std::max(1, ranks_left_.load());
  auto woken = transport::BoardWake::timed_out;
  if (const auto nap = pace_.nap(); nap.count() > 0) {
    const auto naps = std::clamp<std::int64_t>(late / nap, 1, RoundPace::kNaps);
    woken = parts_.inbox->doze(expected, nap, static_cast<int>(naps));
  }
  if (woken == transport::BoardWake::timed_out) woken = wait_for_late(expected, late);
  if (woken == transport::BoardWake::complete) pace_.round_at(RoundPace::Clock::now());
}

// A rank is late after some time without its report but with another's, however long the steps are.
transport::BoardWake ControlLoop::wait_for_late(std::int32_t expected,
                                                std::chrono::nanoseconds late) {
  const auto woken = parts_.inbox->wait(expected, late);
  if (woken != transport::BoardWake::timed_out) return woken;
  const bool has_any =
      parts_.inbox->wait(1, std::chrono::nanoseconds(0)) == transport::BoardWake::complete;
  return has_any ? parts_.inbox->wait(expected, late) : woken;
}

void ControlLoop::turn() {
  const bool is_done =
      succeeds(parts_.log, {"coordinator", "decisions end here, the plan stays as it is"}, [this] {
        transport::CollectedSignals collected = parts_.inbox->collect();
        if (collected.signals.empty()) return;
        note_finished(collected.signals);
        if (!has_failed_.load()) conduct(std::move(collected));
      });
  if (!is_done) has_failed_.store(true);
}

void ControlLoop::conduct(transport::CollectedSignals collected) {
  const StepSignals signals = judge(std::move(collected));
  if (signals.reports.empty()) return;
  Decision decision = decide_round(signals);
  if (decision.plan) {
    publish(*decision.plan, Encoding::delta);
  } else if (should_resend(decision.summary)) {
    publish(parts_.state.plan, Encoding::full);
  }
  keep_record(signals, std::move(decision));
}

StepSignals ControlLoop::judge(transport::CollectedSignals collected) {
  const RoundId round = round_to_judge(collected.signals, parts_.job, earliest_);
  late_.fold(round, parts_.job, collected);
  StepSignals signals = collect(round, parts_.job.incarnation, parts_.job.world_size,
                                collected.signals, std::move(collected.evidence), parts_.now());
  // Reports that come after their round was judged are no round of their own.
  const bool is_round = !signals.reports.empty();
  std::erase_if(signals.faults, [&](const FaultyReport& f) {
    if (f.fault != ReportFault::missing) return false;
    return !is_round || finished_[static_cast<std::size_t>(f.rank.value())] != 0;
  });
  count(signals);
  return signals;
}

// Also from a report that comes too late for its round: nobody must wait for this rank any more.
void ControlLoop::note_finished(const std::vector<RankSignal>& received) {
  for (const RankSignal& report : received) {
    if (!report.has(SignalFlag::finished)) continue;
    if (!is_own(report, parts_.job.incarnation, parts_.job.world_size)) continue;
    auto& finished = finished_[static_cast<std::size_t>(report.rank.value())];
    if (finished == 0) ranks_left_.fetch_sub(1);
    finished = 1;
  }
}

Decision ControlLoop::decide_round(const StepSignals& signals) {
  const auto before = std::chrono::steady_clock::now();
  const std::scoped_lock lock(state_mutex_);
  has_failed_.store(true);
  Decided decided =
      decide(parts_.job, parts_.config, parts_.policies, std::move(parts_.state), signals);
  parts_.state = std::move(decided.state);
  has_failed_.store(false);
  counters_.decide_seconds = Seconds(std::chrono::steady_clock::now() - before).count();
  ++counters_.rounds;
  earliest_ = signals.round.next();
  return std::move(decided.decision);
}

void ControlLoop::publish(const Plan& plan, Encoding encoding) {
  const bool is_delta = encoding == Encoding::delta;
  auto frames = wire::encode_plan(plan, is_delta ? &published_ : nullptr);
  if (!frames.ok()) {
    parts_.log.on_change(LogLevel::error, "publish", frames.status().text());
    return;
  }
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& frame : *frames) set.push_back(frame.used());
  const Status out = parts_.outbox->publish(set);
  if (!out.ok()) {
    parts_.log.on_change(LogLevel::error, "publish", out.text());
    return;
  }
  for (const wire::Frame& frame : *frames) counters_.mask_bytes += frame.size;
  ++(is_delta ? counters_.plans_published : counters_.full_plans_resent);
  published_ = plan;
  published_in_ = counters_.rounds;
  published_frames_ = frames->size();
}

// When a rank asks, and when a plan is not applied long after it went out: a frame may be lost
// without anybody noticing. Not before the last set can have arrived, since a new one starts over.
bool ControlLoop::should_resend(const StepSummary& summary) const {
  constexpr std::uint64_t kPatienceRounds = 16;
  const std::uint64_t rounds = counters_.rounds - published_in_;
  if (rounds <= published_frames_) return false;
  if (summary.full_plan_wanted) return true;
  const bool in_flight = summary.plan_applied_max < parts_.state.plan.id.number;
  const bool somebody_applies = summary.watching < summary.reporting;
  return in_flight && somebody_applies && rounds >= kPatienceRounds + published_frames_;
}

void ControlLoop::keep_record(const StepSignals& signals, Decision decision) {
  if (parts_.journal != nullptr) {
    const Status appended = parts_.journal->append(signals, decision);
    if (!appended.ok()) parts_.log.on_change(LogLevel::error, "journal", appended.text());
    counters_.journal_errors = parts_.journal->lost_rounds();
    counters_.journal_bytes = parts_.journal->bytes();
  }
  for (const Reason& reason : decision.reasons) parts_.log.info(reason.text);
  if (parts_.sink != nullptr) tell_sink(signals, std::move(decision));
}

void ControlLoop::tell_sink(const StepSignals& signals, Decision decision) {
  static_cast<void>(succeeds(parts_.log, {"telemetry", "telemetry missed a round"}, [&] {
    if (!parts_.begun.empty()) add_begun(decision);
    const std::vector<std::int64_t> budgets =
        memory_budgets(parts_.job, parts_.config, parts_.state);
    parts_.sink->record({signals, decision, parts_.state.plan, parts_.job, counters_, budgets});
  }));
}

void ControlLoop::add_begun(Decision& first) {
  std::vector<Reason> all = std::exchange(parts_.begun, {});
  for (Reason& reason : all) reason.round = first.summary.round;
  std::move(first.reasons.begin(), first.reasons.end(), std::back_inserter(all));
  first.reasons = std::move(all);
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

void ControlLoop::stop() {
  stopping_.store(true);
  parts_.inbox->ring();
}

std::vector<Reason> ControlLoop::begin(JobFacts job) {
  const std::scoped_lock lock(state_mutex_);
  parts_.job = std::move(job);
  has_failed_.store(true);
  JournalledStart started =
      begin_journalled(parts_.job, parts_.config, parts_.policies, std::move(parts_.state));
  parts_.state = std::move(started.begun.state);
  has_failed_.store(false);
  published_ = parts_.state.plan;
  if (parts_.journal != nullptr) {
    const Status begun_anew = parts_.journal->begin(started.head);
    if (!begun_anew.ok()) parts_.log.on_change(LogLevel::error, "journal", begun_anew.text());
  }
  const std::vector<Reason>& said = started.begun.reasons;
  parts_.begun.insert(parts_.begun.end(), said.begin(), said.end());
  return std::move(started.begun.reasons);
}

std::optional<ControlState> ControlLoop::state() const {
  const std::scoped_lock lock(state_mutex_);
  if (has_failed_.load()) return std::nullopt;
  return parts_.state;
}

RoundId round_to_judge(std::span<const RankSignal> reports, const JobFacts& job, RoundId earliest) {
  RoundId newest = earliest;
  for (const RankSignal& report : reports) {
    const bool counts =
        is_own(report, job.incarnation, job.world_size) && !report.has(SignalFlag::watching);
    if (counts) newest = std::max(newest, report.round);
  }
  return newest;
}

}  // namespace cox::runtime
