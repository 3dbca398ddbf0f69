// StepWaits is how this rank waits for others, in a step or between steps. The class measures
// arrivals on the clock that all ranks share and watches long waits (SlowWait). Between polls,
// StepWaits moves the rank's mark and the control plane. Owned by the session; training thread
// only.
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

  // Sets the round that ranks wait for from now on, the first one that is not complete on this
  // rank. Shows the round on the rank's mark. REQUIRES: the control plane has started.
  void begin_round(RoundId round, Clock::time_point now);

  // Returns the present time on a clock that all ranks share. Call arrive() in a call of all ranks,
  // once this rank has sent its part. all_arrived() then books the wait for the last rank.
  ArrivalStamp arrive() const { return job_.clocks().stamp(); }
  void all_arrived(const ArrivalStamp& mine, const ArrivalStamp& latest) {
    recorder_.waiting().waited(waiting_seconds(mine, latest));
  }

  // Watches a wait of the open step for other ranks. `where` is the call that waits.
  SlowWait watch(const char* where) const;
  // Moves the control plane and the rank's mark between the polls of `wait`. Throws cox::Error if
  // another rank has left.
  void pump(SlowWait& wait);
  // Returns a watcher for any other wait for all ranks, within steps or between steps. A rank that
  // has left is then an error there as well. REQUIRES: the StepWaits outlives the result.
  BetweenPolls attend(const char* where) const;

 private:
  SlowWait::Setup setup_of(const char* where) const;

  Membership& job_;
  ControlEnd& control_;
  StepRecorder& recorder_;
  RoundId round_{};
};

}  // namespace cox::detail
