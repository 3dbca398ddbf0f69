#include "sdk/src/session/step_recorder.h"

#include <algorithm>
#include <exception>
#include <optional>

namespace cox::detail {

void StepRecorder::begin(StepId step, Clock::time_point now) {
  report_ = StepReport{};
  report_.step = step;
  report_.save_seconds = activity_.take_saved();
  report_.phase_seconds[static_cast<std::size_t>(Phase::host)] = std::exchange(host_, 0);
  waiting_.begin();
  depth_ = 0;
  started_ = booked_until_ = now;
  if (events_) with_events([](PhaseEvents& events) { events.begin_step(); });
  open_ = true;
  activity_.begin_step(step, now);
}

ScalarNames::Verdict StepRecorder::log(std::string_view name, double value) {
  const ScalarNames::Verdict verdict = scalar_names_.look_at(name);
  if (verdict == ScalarNames::Verdict::distinct) report_.log(name, value);
  return verdict;
}

Phase StepRecorder::phase() const {
  return depth_ == 0 ? Phase::other : stack_[std::min(depth_, kMaxDepth) - 1];
}

void StepRecorder::with_events(const std::function<void(PhaseEvents&)>& work) {
  try {
    work(*events_);
  } catch (const std::exception&) {
    events_.reset();
  }
}

void StepRecorder::begin_waiting(Clock::time_point now) {
  if (open_) return enter(Phase::communication, now);
  before_waiting_ = activity_.do_between_steps(Activity::waiting, now);
}

void StepRecorder::end_waiting(Clock::time_point now) {
  if (open_) return leave(now);
  activity_.do_between_steps(before_waiting_, now);
}

// Times come from two readers of one clock, which may differ by some nanoseconds. Booked time never
// goes back.
void StepRecorder::book_until(Clock::time_point now) {
  now = std::max(now, booked_until_);
  const Phase phase = this->phase();
  const double seconds = Seconds(now - booked_until_).count();
  booked_until_ = now;
  const double queued = waiting_.take_queued(phase, seconds);
  report_.phase_seconds[static_cast<std::size_t>(Phase::communication)] += queued;
  report_.phase_seconds[static_cast<std::size_t>(phase)] += seconds - queued;
}

void StepRecorder::add_up_waiting() {
  if (waiting_.leaves_out_queueing()) report_.set(SignalFlag::without_queueing);
  const auto waiting =
      waiting_.seconds(report_.phase_seconds[static_cast<std::size_t>(Phase::communication)]);
  if (!waiting) return;
  report_.set(SignalFlag::waiting_measured);
  report_.waiting_seconds = *waiting;
}

void StepRecorder::enter(Phase phase, Clock::time_point now) {
  book_until(now);
  if (depth_ < kMaxDepth) stack_[depth_] = phase;
  ++depth_;
  if (events_) with_events([&](PhaseEvents& events) { events.change(phase); });
  tell_phase(now);
}

void StepRecorder::leave(Clock::time_point now) {
  book_until(now);
  if (depth_ > 0) --depth_;
  if (events_) with_events([this](PhaseEvents& events) { events.change(phase()); });
  tell_phase(now);
}

void StepRecorder::tell_phase(Clock::time_point now) {
  activity_.change(depth_ == 0 ? std::nullopt : std::optional(phase()), now);
}

void StepRecorder::leave_out(Clock::time_point from, Clock::time_point to) {
  if (!open_) return;
  book_until(from);
  booked_until_ = to;
  if (events_) events_->spoil();
  waiting_.pass_over();
  started_ += to - from;
}

const StepReport& StepRecorder::end(Clock::time_point now) {
  book_until(now);
  add_up_waiting();
  report_.wall_seconds = Seconds(booked_until_ - started_).count();
  if (events_) with_events([this](PhaseEvents&) { take_device_times(); });
  open_ = false;
  activity_.end_step(now);
  return report_;
}

void StepRecorder::take_device_times() {
  events_->end_step(
      {report_.wall_seconds, report_.waiting_seconds, report_.has(SignalFlag::waiting_measured)});
  const auto times = events_->take();
  report_.has_times = times.has_value();
  if (!times) return;
  constexpr auto kHost = static_cast<std::size_t>(Phase::host);
  const double host = report_.phase_seconds[kHost];
  report_.phase_seconds = times->phase_seconds;
  report_.phase_seconds[kHost] = host;
  report_.wall_seconds = times->host.wall_seconds;
  report_.waiting_seconds = times->host.waiting_seconds;
  const auto known = static_cast<std::uint16_t>(SignalFlag::waiting_measured);
  report_.flags = static_cast<std::uint16_t>(report_.flags & ~known);
  if (times->host.is_waiting_known) report_.set(SignalFlag::waiting_measured);
}

void RankActivity::begin_step(StepId step, Clock::time_point now) {
  step_ = step;
  is_open_ = true;
  phase_.reset();
  between_ = Activity::outside;
  aside_ = Activity::other;
  tell(now);
}

void RankActivity::end_step(Clock::time_point now) {
  is_open_ = false;
  if (aside_ == Activity::epoch) between_ = Activity::epoch;
  tell(now);
}

Activity RankActivity::do_between_steps(Activity activity, Clock::time_point now) {
  if (!is_open_ && between_ == Activity::saving) saved_ += Seconds(now - between_since_).count();
  between_since_ = now;
  const Activity before = std::exchange(between_, activity);
  if (!is_open_) tell(now);
  return before;
}

Activity RankActivity::do_aside(Activity activity, Clock::time_point now) {
  if (!is_open_) return aside_;
  const Activity before = std::exchange(aside_, activity);
  tell(now);
  return before;
}

double RankActivity::take_saved() {
  return std::exchange(saved_, 0);
}

}  // namespace cox::detail
