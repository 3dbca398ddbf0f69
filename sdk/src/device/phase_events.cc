#include "sdk/src/device/phase_events.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace cox::detail {

c10::Event PhaseEvents::unused() {
  if (unused_.empty()) return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event event = std::move(unused_.back());
  unused_.pop_back();
  return event;
}

void PhaseEvents::mark(Phase phase) {
  c10::Event event = unused();
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  open_.marks.push_back({std::move(event), phase});
}

void PhaseEvents::put_back(Step step) {
  for (Mark& mark : step.marks) unused_.push_back(std::move(mark.event));
}

void PhaseEvents::begin_step() {
  put_back(std::exchange(open_, {}));
  is_spoiled_ = false;
  mark(Phase::other);
}

void PhaseEvents::change(Phase phase) {
  if (!open_.marks.empty()) mark(phase);
}

void PhaseEvents::end_step(const Host& host) {
  if (open_.marks.empty() || is_spoiled_) return put_back(std::exchange(open_, {}));
  mark(Phase::other);
  open_.host = host;
  ended_.push_back(std::exchange(open_, {}));
  if (ended_.size() <= kSteps) return;
  put_back(std::move(ended_.front()));
  ended_.pop_front();
}

std::optional<PhaseEvents::Times> PhaseEvents::take() {
  if (ended_.empty() || !is_over(ended_.front())) return std::nullopt;
  Step oldest = std::move(ended_.front());
  ended_.pop_front();
  const Times times = times_of(oldest);
  put_back(std::move(oldest));
  return times;
}

// Checks all events, because a phase may have run on another stream than the last one. Reading
// times between events that have not passed is an error.
bool PhaseEvents::is_over(const Step& step) {
  return step.marks.back().event.query() &&
         std::ranges::all_of(step.marks, [](const Mark& mark) { return mark.event.query(); });
}

PhaseEvents::Times PhaseEvents::times_of(const Step& step) {
  Times times;
  times.host = step.host;
  for (std::size_t m = 0; m + 1 < step.marks.size(); ++m) {
    const Mark& from = step.marks[m];
    // Across streams, an event may pass before an earlier one.
    const double milliseconds = std::max(0.0, from.event.elapsedTime(step.marks[m + 1].event));
    times.phase_seconds[static_cast<std::size_t>(from.phase)] += milliseconds / 1e3;
  }
  const double all = std::accumulate(times.phase_seconds.begin(), times.phase_seconds.end(), 0.0);
  times.host.wall_seconds = std::max(all, times.host.wall_seconds);
  times.phase_seconds[static_cast<std::size_t>(Phase::other)] += times.host.wall_seconds - all;
  const double communication = times.phase_seconds[static_cast<std::size_t>(Phase::communication)];
  times.host.waiting_seconds = std::min(times.host.waiting_seconds, communication);
  return times;
}

}  // namespace cox::detail
