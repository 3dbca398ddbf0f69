#include "sdk/src/session/step_recorder.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cox::detail {

void StepRecorder::begin(StepId step, Clock::time_point now) {
  report_ = StepReport{};
  report_.step = step;
  report_.loss = std::numeric_limits<double>::quiet_NaN();
  report_.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  loss_sum_ = 0;
  depth_ = 0;
  started_ = booked_until_ = now;
  open_ = true;
}

void StepRecorder::book_until(Clock::time_point now) {
  const Phase phase = depth_ == 0 ? Phase::other : stack_[std::min(depth_, kMaxDepth) - 1];
  report_.phase_seconds[static_cast<std::size_t>(phase)] += Seconds(now - booked_until_).count();
  booked_until_ = now;
}

void StepRecorder::enter(Phase phase, Clock::time_point now) {
  book_until(now);
  if (depth_ < kMaxDepth) stack_[depth_] = phase;
  ++depth_;
}

void StepRecorder::leave(Clock::time_point now) {
  book_until(now);
  if (depth_ > 0) --depth_;
}

void StepRecorder::leave_out(Clock::time_point from, Clock::time_point to) {
  if (!open_) return;
  book_until(from);
  booked_until_ = to;
  started_ += to - from;
}

void StepRecorder::loss(double mean, double weight) {
  if (weight == 0) return;  // the mean of no samples is no number
  loss_sum_ += mean * weight;
  report_.weight += weight;
  report_.loss = loss_sum_ / report_.weight;
  if (!std::isfinite(mean)) flag(SignalFlag::nonfinite_loss);
}

void StepRecorder::log(std::string_view name, double value) {
  const std::string_view key = name.substr(0, sizeof(UserScalar::name) - 1);
  for (std::size_t i = 0; i < report_.scalar_count; ++i) {
    if (key == report_.scalars[i].name.data()) {
      report_.scalars[i].value = value;
      return;
    }
  }
  if (report_.scalar_count == kUserScalars) return;
  UserScalar& scalar = report_.scalars[report_.scalar_count++];
  std::copy(key.begin(), key.end(), scalar.name.begin());
  scalar.value = value;
}

const StepReport& StepRecorder::end(Clock::time_point now) {
  book_until(now);
  report_.wall_seconds = Seconds(now - started_).count();
  open_ = false;
  return report_;
}

}  // namespace cox::detail
