#include "sdk/src/session/step_waits.h"

#include <memory>

namespace cox::detail {

void StepWaits::begin_round(RoundId round, Clock::time_point now) {
  round_ = round;
  control_.plane().mark().begin_round(round, now);
}

SlowWait StepWaits::watch(const char* where) const {
  const runtime::ControlPlane& plane = control_.plane();
  return SlowWait({job_.log(), where, round_, [&plane] { return plane.marks_here(); },
                   Seconds(job_.config().control.wait_seconds),
                   [&control = control_] { control.explain_end(); }},
                  Clock::now());
}

void StepWaits::pump(SlowWait& wait) {
  const Clock::time_point now = Clock::now();
  control_.plane().mark().beat(now);
  control_.plane().pump();
  wait.look(now);
}

BetweenPolls StepWaits::attend(const char* where) const {
  auto wait = std::make_shared<SlowWait>(watch(where));
  return [this, wait] {
    const Clock::time_point now = Clock::now();
    control_.plane().mark().beat(now);
    wait->look(now);
  };
}

}  // namespace cox::detail
