#include "sdk/src/session/calibration.h"

#include <algorithm>
#include <string>

#include "coxswain/error.h"

namespace cox::detail {

bool Calibration::is_wanted() const {
  return !has_run_ && std::ranges::any_of(actuators_, [](const Actuator* each) {
    return each->wants_calibration();
  });
}

void Calibration::run(const SampleStep& sample) {
  if (step_.has_reported()) {
    throw Error(failed_precondition(
                    "calibrate: expected it before the end of the session's first step, found " +
                    std::to_string(step_.steps_ended()) +
                    " reported; call Session::calibrate() right after the Reducer was made, or "
                    "TrainerStep::forward() or accumulate() from the first step on"),
                Error::Scope::all_ranks);
  }
  has_run_ = true;
  const auto began = Clock::now();
  for (Actuator* actuator : actuators_) {
    if (actuator->wants_calibration()) actuator->calibrate(sample, *this);
  }
  // The open step must not see what a trial left behind, and the plan may be another one.
  forget_run();
  step_.restart();
  recorder_.leave_out(began, Clock::now());
}

void Calibration::forget_run() {
  for (Actuator* actuator : actuators_) actuator->forget_run();
}

std::vector<Reason> Calibration::learn() {
  std::vector<Reason> reasons = control_.learn(measured_);
  for (const Reason& reason : reasons) {
    const bool is_news = std::ranges::find(told_, reason.text, &Reason::text) == told_.end();
    if (reason.code != ReasonCode::memory_infeasible && is_news) job_.log().info(reason.text);
  }
  told_ = reasons;
  return reasons;
}

}  // namespace cox::detail
