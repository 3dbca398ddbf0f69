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

void count(const StepSignals& signals, ControlCounters& counters) {
  counters.signal_bytes += signals.reports.size() * sizeof(RankSignal);
  for (const FaultyReport& fault : signals.faults) {
    switch (fault.fault) {
      case ReportFault::missing:
        ++counters.missing_reports;
        break;
      case ReportFault::stale:
        ++counters.stale_reports;
        break;
      case ReportFault::duplicate:
        ++counters.duplicate_reports;
        break;
      default:
        ++counters.damaged_reports;
    }
  }
}

}  // namespace

ControlLoop::ControlLoop(ControlLoopParts parts)
    : parts_(std::move(parts)),
      inbox_(*parts_.inbox, parts_.job.world_size, Seconds(parts_.config.control.late_seconds)),
      published_(parts_.state.plan) {}

void ControlLoop::run() {
  while (!stopping_.load()) {
    inbox_.wait();
    take_turn();
  }
  take_turn();
}

void ControlLoop::stop() {
  stopping_.store(true);
  inbox_.notify();
}

void ControlLoop::take_turn() {
  const bool is_done =
      succeeds(parts_.log, {"coordinator", "decisions end here, the plan stays as it is"}, [this] {
        TakenReports taken = inbox_.take(parts_.job);
        if (!taken.signals.empty() && !has_failed_.load()) conduct(std::move(taken));
      });
  if (!is_done) has_failed_.store(true);
}

// The flow of one round.
void ControlLoop::conduct(TakenReports taken) {
  const StepSignals signals = gather(std::move(taken));
  if (signals.reports.empty()) return;
  Decision decision = decide_round(signals);  // summarizes, estimates, decides
  if (const std::optional<Mask> mask = encode(decision)) publish(*mask);
  record(signals, std::move(decision));
}

StepSignals ControlLoop::gather(TakenReports taken) {
  StepSignals signals = inbox_.gather(std::move(taken), parts_.job, parts_.now());
  count(signals, counters_);
  return signals;
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
  return std::move(decided.decision);
}

// Changes against the last plan, or all of the plan where somebody may have missed one.
std::optional<ControlLoop::Mask> ControlLoop::encode(const Decision& decision) {
  if (!decision.plan && !should_resend(decision.summary)) return std::nullopt;
  const Encoding encoding = decision.plan ? Encoding::delta : Encoding::full;
  auto frames =
      wire::encode_plan(parts_.state.plan, encoding == Encoding::delta ? &published_ : nullptr);
  if (frames.ok()) return Mask{encoding, std::move(*frames)};
  parts_.log.on_change(LogLevel::error, "publish", frames.status().text());
  return std::nullopt;
}

void ControlLoop::publish(const Mask& mask) {
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& frame : mask.frames) set.push_back(frame.used());
  const Status out = parts_.outbox->publish(set);
  if (!out.ok()) {
    parts_.log.on_change(LogLevel::error, "publish", out.text());
    return;
  }
  for (const wire::Frame& frame : mask.frames) counters_.mask_bytes += frame.size;
  ++(mask.encoding == Encoding::delta ? counters_.plans_published : counters_.full_plans_resent);
  published_ = parts_.state.plan;
  published_in_ = counters_.rounds;
  published_frames_ = mask.frames.size();
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

void ControlLoop::record(const StepSignals& signals, Decision decision) {
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

}  // namespace cox::runtime
