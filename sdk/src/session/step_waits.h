// StepWaits is how this rank waits for the others, in a step or between two. It reads the moment of
// an arrival on the clock that all ranks share, watches a wait that gets long (SlowWait), and moves
// the rank's mark and the control plane on between the polls. Owned by the session; training
// thread only.
#pragma once

#include "coordinator/core/arrival.h"
#include "coordinator/core/units.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/slow_wait.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

class StepWaits {
 public:
  StepWaits(Membership& job, ControlEnd& control, StepRecorder& recorder)
      : job_(job), control_(control), recorder_(recorder) {}

  // Sets the round that is waited for from here on, the first one that is not complete on this
  // rank, and shows it on the rank's mark. REQUIRES: the control plane has started.
  void begin_round(RoundId round, Clock::time_point now);

  // Returns the present moment on a clock that all ranks share: before a call of all ranks, once
  // this rank has given its part. all_arrived() then books the wait for the last one.
  ArrivalStamp arrive() const { return job_.clocks().stamp(); }
  void all_arrived(const ArrivalStamp& mine, const ArrivalStamp& latest) {
    recorder_.waiting().waited(waiting_seconds(mine, latest));
  }

  // Watches a wait of the open step for the other ranks: `where` is the call that waits.
  SlowWait watch(const char* where) const;
  // Between the polls of that wait: moves the control plane on, and the rank's mark. Throws
  // cox::Error where another rank has left.
  void pump(SlowWait& wait);
  // Returns what watches any other wait for all ranks, within steps or between them, so that a rank
  // that has left is an error there as well. It must not outlive this.
  BetweenPolls attend(const char* where) const;

 private:
  SlowWait::Setup setup_of(const char* where) const;

  Membership& job_;
  ControlEnd& control_;
  StepRecorder& recorder_;
  RoundId round_{};
};

}  // namespace cox::detail
