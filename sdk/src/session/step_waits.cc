#include "sdk/src/session/step_waits.h"

#include <memory>
#include <utility>

namespace cox::detail {
namespace {

constexpr RoundId kLastRound(~RoundId().value());

}  // namespace

void StepWaits::begin_round(RoundId round, Clock::time_point now) {
  round_ = round;
  if (transport::CallBook* calls = job_.world().calls()) calls->complete_rounds_before(round);
  control_.plane().mark().begin_round(round, now);
}

SlowWait StepWaits::watch(const char* where) const {
  SlowWait::Setup setup = setup_of(where);
  if (transport::CallBook* calls = job_.world().calls()) {
    calls->begin_round(round_);
    setup.look_at_calls = [calls](Clock::time_point since) { return calls->look_at_round(since); };
  }
  return SlowWait(std::move(setup), Clock::now());
}

SlowWait::Setup StepWaits::setup_of(const char* where) const {
  const runtime::ControlPlane& plane = control_.plane();
  return {job_.log(),
          where,
          round_,
          [&plane] { return plane.marks_here(); },
          Seconds(job_.config().control.wait_seconds),
          [&control = control_] { control.explain_end(); }};
}

void StepWaits::pump(SlowWait& wait) {
  const Clock::time_point now = Clock::now();
  control_.plane().mark().beat(now);
  control_.plane().pump();
  wait.look(now);
}

BetweenPolls StepWaits::attend(const char* where) const {
  SlowWait::Setup setup = setup_of(where);
  setup.round = kLastRound;  // a rank that left its loop after any step makes no call
  auto wait = std::make_shared<SlowWait>(std::move(setup), Clock::now());
  return [this, wait] {
    const Clock::time_point now = Clock::now();
    control_.plane().mark().beat(now);
    wait->look(now);
  };
}

}  // namespace cox::detail
