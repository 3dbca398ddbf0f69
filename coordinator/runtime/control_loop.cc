#include "coordinator/runtime/control_loop.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/policies/memory/memory.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {
namespace {

struct Failure {
  const char* topic;
  const char* consequence;
};

void log_failure(Log& log, const Failure& failure, const char* what) noexcept try {
  log.on_change(LogLevel::error, failure.topic, concat(failure.consequence, ": ", what));
} catch (...) {
  // Missing memory for a message is no reason to end the job.
}

// Runs `work`. Returns false if `work` threw, and logs the exception.
template <class Work>
bool runs_through(Log& log, const Failure& otherwise, const Work& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    log_failure(log, otherwise, error.what());
  } catch (...) {
    log_failure(log, otherwise, "an exception of unknown type");
  }
  return false;
}

// Gives the plan the next number, because ranks ignore a plan without a newer number.
Plan renumbered(Plan plan) {
  ++plan.id.number;
  plan.earliest_round = {};
  plan.activated_round.reset();
  return plan;
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
      state_(std::move(parts_.state)),
      published_(state_->plan) {}

void ControlLoop::run() {
  while (!stopping_.load()) {
    inbox_.wait([this] { look_for_stalls(); });
    handle_reports();
  }
  handle_reports();
}

void ControlLoop::stop() {
  stopping_.store(true);
  inbox_.notify();
}

void ControlLoop::look_for_stalls() {
  if (parts_.stalls == nullptr) return;
  static_cast<void>(runs_through(parts_.log, {"stalls", "one check for stalled ranks failed"},
                                 [this] { parts_.stalls->look(transport::MarkClock::now()); }));
}

void ControlLoop::handle_reports() {
  const bool is_done = runs_through(
      parts_.log, {"coordinator", "decisions end here, and the plan does not change any more"},
      [this] {
        TakenReports taken = inbox_.take(parts_.job);
        const bool is_round = !taken.signals.empty();
        if (is_round && state_) run_round(std::move(taken));
        if (is_round && parts_.stalls != nullptr)
          parts_.stalls->round_closed(transport::MarkClock::now());
      });
  if (is_done) return;
  const std::scoped_lock lock(state_mutex_);
  state_.reset();
}

void ControlLoop::run_round(TakenReports taken) {
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

// A decision that throws leaves no state behind: the job goes on without decisions.
Decision ControlLoop::decide_round(const StepSignals& signals) {
  const auto before = std::chrono::steady_clock::now();
  const std::scoped_lock lock(state_mutex_);
  ControlState state = *std::exchange(state_, std::nullopt);
  Decided decided = decide(parts_.job, parts_.config, parts_.policies, std::move(state), signals);
  state_ = std::move(decided.state);
  counters_.decide_seconds = Seconds(std::chrono::steady_clock::now() - before).count();
  ++counters_.rounds;
  return std::move(decided.decision);
}

// Encodes the changes against the last plan, or the whole plan if a rank may have missed one.
std::optional<ControlLoop::Mask> ControlLoop::encode(const Decision& decision) {
  if (!decision.plan && !should_resend(decision.summary)) return std::nullopt;
  const Encoding encoding = decision.plan ? Encoding::delta : Encoding::full;
  const Plan& plan = state_->plan;
  auto frames = wire::encode_plan(plan, encoding == Encoding::delta ? &published_ : nullptr);
  if (frames.ok()) return Mask{encoding, plan, std::move(*frames)};
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
  published_ = mask.plan;
  published_in_ = counters_.rounds;
  published_frames_ = mask.frames.size();
}

// Returns true if a rank asks, or if a plan is not applied long after its publication: a frame may
// be lost unnoticed. Waits until the last set can have arrived, because a new set starts over.
bool ControlLoop::should_resend(const StepSummary& summary) const {
  constexpr std::uint64_t kPatienceRounds = 16;
  const std::uint64_t rounds = counters_.rounds - published_in_;
  if (rounds <= published_frames_) return false;
  if (summary.full_plan_wanted) return true;
  const bool in_flight = summary.plan_applied_max < state_->plan.id.number;
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
  tell(decision.reasons);
  if (parts_.sink != nullptr) send_to_sink(signals, std::move(decision));
}

// Logs "plan unchanged" at debug level only, because the page and the journal show the same.
void ControlLoop::tell(const std::vector<Reason>& reasons) {
  if (!std::exchange(has_told_start_, true)) {
    for (const Reason& reason : parts_.start_reasons) {
      if (is_provisional(reason)) parts_.log.info(reason.text);
    }
  }
  for (const Reason& reason : reasons) {
    const bool is_rest =
        reason.code == ReasonCode::memory_fits || reason.code == ReasonCode::shares_kept;
    parts_.log.write(is_rest ? LogLevel::debug : LogLevel::info, reason.text);
  }
}

void ControlLoop::send_to_sink(const StepSignals& signals, Decision decision) {
  static_cast<void>(runs_through(parts_.log, {"telemetry", "telemetry missed a round"}, [&] {
    const ControlState& state = *state_;
    std::vector<Reason> reasons = std::exchange(parts_.start_reasons, {});
    for (Reason& reason : reasons) reason.round = decision.summary.round;
    std::move(decision.reasons.begin(), decision.reasons.end(), std::back_inserter(reasons));
    decision.reasons = std::move(reasons);
    const auto budgets = memory_budgets(parts_.job, parts_.config, state);
    parts_.sink->record({signals, decision, state.plan, parts_.job, counters_, budgets});
  }));
}

std::vector<Reason> ControlLoop::begin(JobFacts job) {
  const std::scoped_lock lock(state_mutex_);
  if (!state_) return {};
  parts_.job = std::move(job);
  ControlState state = *std::exchange(state_, std::nullopt);
  if (counters_.rounds > 0) state.plan = renumbered(std::move(state.plan));
  JournalledStart started =
      begin_journalled(parts_.job, parts_.config, parts_.policies, std::move(state));
  published_ = started.begun.state.plan;
  state_ = std::move(started.begun.state);
  if (parts_.journal != nullptr) {
    const Status begun_anew = parts_.journal->begin(started.head);
    if (!begun_anew.ok()) parts_.log.on_change(LogLevel::error, "journal", begun_anew.text());
  }
  replace_start_reasons(started.begun.reasons);
  has_told_start_ = true;  // by the caller, who gets the reasons
  return std::move(started.begun.reasons);
}

bool is_provisional(const Reason& reason) {
  return reason.policy != PolicyKind::none && reason.outcome != Outcome::changed &&
         reason.outcome != Outcome::clamped;
}

// Drops earlier reasons for unchanged knobs, which are stale. Keeps reasons for changes, which are
// in the plan.
void ControlLoop::replace_start_reasons(const std::vector<Reason>& reasons) {
  std::vector<Reason>& kept = parts_.start_reasons;
  std::erase_if(kept, is_provisional);
  for (const Reason& reason : reasons) {
    const bool is_known = std::any_of(kept.begin(), kept.end(), [&](const Reason& known) {
      return known.policy == reason.policy && known.text == reason.text;
    });
    if (!is_known) kept.push_back(reason);
  }
}

std::optional<ControlState> ControlLoop::state() const {
  const std::scoped_lock lock(state_mutex_);
  return state_;
}

}  // namespace cox::runtime
