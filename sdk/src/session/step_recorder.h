// StepRecorder measures where a rank's time went in the open step, and collects the loop's notes.
// The first stage of the flow: probes -> StepReport -> RankSignal. The same calls update the rank's
// mark, which other processes read during the step. Time is passed in; nothing allocates after
// construction. Owned and used by the training thread.
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

// RankActivity is the rank's present activity, in a step and between steps. The rank's mark
// (MarkBoard) shows the activity to other ranks.
class RankActivity {
 public:
  // Makes `mark` follow the activity from now on. REQUIRES: `mark` outlives the RankActivity.
  void move_mark(transport::MarkWriter* mark) { mark_ = mark; }

  void begin_step(StepId step, Clock::time_point now);
  // Sets the phase of the open step, or none.
  void change(std::optional<Phase> phase, Clock::time_point now) {
    phase_ = phase;
    tell(now);
  }
  void end_step(Clock::time_point now);

  // Sets the rank's activity until its next step begins; `outside` means unknown. Returns the
  // activity before.
  Activity do_between_steps(Activity activity, Clock::time_point now);
  // Sets the rank's activity in the open step, outside of its phases, until the next call or the
  // next step; `other` is the step's own work. Returns the activity before.
  Activity do_aside(Activity activity, Clock::time_point now);

  // Returns the seconds of saves between steps since the last call.
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
  std::optional<Phase> phase_;            // in the open step
  Activity aside_ = Activity::other;      // in the open step, outside of its phases
  Activity between_ = Activity::outside;  // between steps
  Clock::time_point between_since_{};
  double saved_ = 0;
  transport::MarkWriter* mark_ = nullptr;  // null = no reader of marks yet
};

class StepRecorder {
 public:
  static constexpr std::size_t kMaxDepth = 16;  // nested phases; deeper ones book on the 16th

  void begin(StepId step, Clock::time_point now);
  void enter(Phase phase, Clock::time_point now);
  void leave(Clock::time_point now);
  // Ends the step and returns its report, which is valid until the next begin().
  const StepReport& end(Clock::time_point now);

  // Begins a wait for other ranks in a call of all ranks, in the open step or between two steps.
  void begin_waiting(Clock::time_point now);
  void end_waiting(Clock::time_point now);

  // Returns the rank's activity outside of phases, in the open step or between two steps.
  RankActivity& activity() { return activity_; }
  // Returns the waiting time of the open step, in calls of all ranks and for a core.
  WaitingTime& waiting() { return waiting_; }
  // Returns the loop's notes on the open step; the loop adds to the notes.
  StepNotes& notes() { return report_; }
  // Adds a scalar of the program's own, unless its name collides with an earlier one in a row.
  ScalarNames::Verdict log(std::string_view name, double value);

  // Times phases by `events` on a device from now on, because a device works later than the host
  // enqueues. A report then has the times of the newest step that the device has finished, or no
  // times if there is no new one.
  void time_on_device(std::unique_ptr<PhaseEvents> events) { events_ = std::move(events); }

  // Adds the time of Coxswain's own work between two steps to `host` of the next step.
  void add_host(Clock::duration worked) { host_ += Seconds(worked).count(); }

  // Excludes the time from `from` to `to` from the step.
  void leave_out(Clock::time_point from, Clock::time_point to);

  bool is_open() const { return open_; }
  const StepReport& report() const { return report_; }

 private:
  void book_until(Clock::time_point now);
  void add_up_waiting();
  Phase phase() const;
  void tell_phase(Clock::time_point now);
  void take_device_times();
  // Runs `work` on the events. Times on the host from then on if the device refuses.
  void with_events(const std::function<void(PhaseEvents&)>& work);

  StepReport report_;
  ScalarNames scalar_names_;
  std::array<Phase, kMaxDepth> stack_{};
  std::size_t depth_ = 0;
  Clock::time_point started_{};
  Clock::time_point booked_until_{};
  WaitingTime waiting_;
  RankActivity activity_;
  Activity before_waiting_ = Activity::outside;  // the activity between two steps before the wait
  std::unique_ptr<PhaseEvents> events_;          // null: phases are timed on the host
  double host_ = 0;                              // seconds since the step before
  bool open_ = false;
};

}  // namespace cox::detail
