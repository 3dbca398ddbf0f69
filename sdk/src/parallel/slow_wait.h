// SlowWait watches one wait of this rank for the others, between its polls. SlowWait reads the
// marks of the node's ranks twice a second. So a rank that left its loop causes an error instead of
// an endless wait. A long wait logs once which ranks are awaited. Beyond control.wait_seconds,
// SlowWait ends the job if the coordinator has not. Time is passed in. Training thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox::detail {

// Ends the process, and so the job, because a wait is beyond control.wait_seconds. From any thread;
// nothing is unwound, because the training thread may stand still.
[[noreturn]] void end_waiting(const Log& log, const std::string& why);

class SlowWait {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{30};
  static constexpr std::chrono::milliseconds kLookEvery{500};
  static constexpr Seconds kGrace{10};  // for the coordinator, which knows more, to end the job

  struct Setup {
    const Log& log;
    const char* where;                             // the waiting call
    RoundId round{};                               // the round that all ranks must reach
    std::function<std::vector<RankMark>()> marks;  // all visible ranks, including this one
    Seconds limit{0};                              // control.wait_seconds
    std::function<void()> before_end{};            // called before the job's end
    // Returns an error if other ranks wait in other calls; may be empty.
    std::function<Status(std::chrono::steady_clock::time_point since)> look_at_calls{};
  };
  // `setup.log` outlives the object.
  SlowWait(Setup setup, Clock::time_point begin);

  // Throws cox::Error if a visible rank left its loop before the round, or if ranks wait for each
  // other in different calls.
  void look(Clock::time_point now);
  // Returns whether the limit, and the coordinator's grace, are used up. Time between two calls of
  // look() counts for at most two seconds: a machine that stood still ends no job.
  bool is_beyond_limit() const { return waited_ > setup_.limit + kGrace; }

 private:
  void check_departures(const std::vector<RankMark>& marks) const;
  void tell(const std::vector<RankMark>& marks);

  Setup setup_;
  Clock::time_point begin_;
  Clock::time_point last_;
  Clock::time_point next_;
  Seconds waited_{0};
  bool is_told_ = false;
};

}  // namespace cox::detail
