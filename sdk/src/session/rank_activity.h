// RankActivity is what a rank does now, in a step and between two. The rank's mark (MarkBoard)
// tells it to other ranks. Owned by the StepRecorder; training thread. Time is passed in.
#pragma once

#include <optional>

#include "coordinator/core/phase.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/shared/mark_board.h"
#include "sdk/src/session/tick_clock.h"

namespace cox::detail {

class RankActivity {
 public:
  // From here on the mark follows. `mark` must outlive this.
  void move_mark(transport::MarkWriter* mark) { mark_ = mark; }

  void begin_step(StepId step, Clock::time_point now);
  // The open step is in `phase` from now on, or in none.
  void change(std::optional<Phase> phase, Clock::time_point now) {
    phase_ = phase;
    tell(now);
  }
  void end_step(Clock::time_point now);

  // Sets what the rank does until its next step begins; outside = nothing that we know of. Returns
  // what the rank did before.
  Activity do_between_steps(Activity activity, Clock::time_point now);
  // Sets what the rank does in the open step, outside of its phases, until told otherwise or until
  // the next step begins: `other` is the step's own work. Returns what the rank did before.
  Activity do_aside(Activity activity, Clock::time_point now);

  // Returns the seconds of saves between steps since it was asked before.
  double take_saved();

 private:
  Activity now_done() const {
    if (!is_open_) return between_;
    return phase_ ? activity_of(*phase_) : aside_;
  }
  void tell(Clock::time_point now) {
    if (mark_ != nullptr) mark_->enter(now_done(), step_, now);
  }

  StepId step_{};
  bool is_open_ = false;
  std::optional<Phase> phase_;            // of the open step
  Activity aside_ = Activity::other;      // in the open step, outside of its phases
  Activity between_ = Activity::outside;  // of steps
  Clock::time_point between_since_{};
  double saved_ = 0;
  transport::MarkWriter* mark_ = nullptr;  // null = nobody reads marks yet
};

}  // namespace cox::detail
