// StepRecorder: where a rank's time went in the open step, and what the loop said about it. The
// first stage of the flow: probes -> StepReport -> RankSignal. The same calls move the rank's mark,
// which others read while the step lasts. Time is passed in; nothing allocates after construction.
// Owned and used by the training thread.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "coordinator/core/phase.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/shared/mark_board.h"
#include "sdk/src/device/phase_events.h"
#include "sdk/src/session/step_report.h"
#include "sdk/src/session/tick_clock.h"
#include "sdk/src/session/waiting_time.h"

namespace cox::detail {

// RankActivity is what a rank does now, in a step and between two. The rank's mark (MarkBoard)
// tells it to other ranks.
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

class StepRecorder {
 public:
  static constexpr std::size_t kMaxDepth = 16;  // of nested phases; deeper ones book on the 16th

  void begin(StepId step, Clock::time_point now);
  void enter(Phase phase, Clock::time_point now);
  void leave(Clock::time_point now);
  // Ends the step and returns its report, which is valid until the next begin().
  const StepReport& end(Clock::time_point now);

  // The rank waits for others, in the open step or between two: in a call of all ranks.
  void begin_waiting(Clock::time_point now);
  void end_waiting(Clock::time_point now);

  // Returns what the rank does outside of phases, in the open step or between two.
  RankActivity& activity() { return activity_; }
  // Returns how long the open step waited, in calls of all ranks and for a core.
  WaitingTime& waiting() { return waiting_; }
  // Returns what the loop said of the open step; the loop adds to the notes.
  StepNotes& notes() { return report_; }
  // Adds a scalar of the program's own, unless a row could not tell its name from an earlier one.
  ScalarNames::Verdict log(std::string_view name, double value);

  // From here on phases are timed by `events` on a device, where work is done later than the host
  // gives it. A report then has the times of the newest step that the device has finished, and none
  // where there is no new one.
  void time_on_device(std::unique_ptr<PhaseEvents> events) { events_ = std::move(events); }

  // Coxswain itself worked for so long between two steps: `host` of the next one.
  void add_host(Clock::duration worked) { host_ += Seconds(worked).count(); }

  // Takes the time between the two out of the step.
  void leave_out(Clock::time_point from, Clock::time_point to);

  bool is_open() const { return open_; }
  const StepReport& report() const { return report_; }

 private:
  void book_until(Clock::time_point now);
  void add_up_waiting();
  Phase phase() const;
  void tell_phase(Clock::time_point now);
  void take_device_times();
  // Runs `work` on the events, and times on the host from then on where the device refuses.
  void with_events(const std::function<void(PhaseEvents&)>& work);

  StepReport report_;
  ScalarNames scalar_names_;
  std::array<Phase, kMaxDepth> stack_{};
  std::size_t depth_ = 0;
  Clock::time_point started_{};
  Clock::time_point booked_until_{};
  WaitingTime waiting_;
  RankActivity activity_;
  Activity before_waiting_ = Activity::outside;  // between two steps
  std::unique_ptr<PhaseEvents> events_;          // null: phases are timed on the host
  double host_ = 0;                              // since the step before
  bool open_ = false;
};

}  // namespace cox::detail
