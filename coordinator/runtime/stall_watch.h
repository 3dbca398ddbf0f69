// StallWatch: the coordinator's look at who keeps whom waiting. While no round comes it reads the
// marks of all ranks, derives the stall (core/stall.h), and tells it: one line in the log when one
// is found and when it is over, the newest one to telemetry at every look, and, beyond
// control.wait_seconds, the end of the job. It works while rank 0's training thread stands still:
// marks are read from memory.
//
// Thread rule: the coordinator's thread. Owned by the ControlPlane of rank 0.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/shared/mark_board.h"

namespace cox::runtime {

struct StallWatchParts {
  // The marks of all ranks, ascending.
  std::function<std::vector<RankMark>(transport::MarkClock::time_point now)> read;
  std::function<void(const std::optional<Stall>&)> show;  // to telemetry; may be empty
  // Called once, with the message, when a wait is beyond the limit; may be empty.
  std::function<void(const std::string& why)> give_up;
  Seconds limit{3600};
  Log log;
};

class StallWatch {
 public:
  using Clock = transport::MarkClock;

  explicit StallWatch(StallWatchParts parts) : parts_(std::move(parts)) {}

  // A control round has closed.
  void round_closed(Clock::time_point now);
  // Nothing has come for a while. A few hundred times in a job's rounds this costs nothing: marks
  // are only read here.
  void look(Clock::time_point now);

  const std::optional<Stall>& stall() const { return stall_; }

 private:
  void note_time(Clock::time_point now);
  std::vector<RankMark> marks_of_now(Clock::time_point now) const;
  void tell();
  void tell_end();

  StallWatchParts parts_;
  std::optional<Stall> stall_;
  std::string told_;            // what of the stall was in the last line: see tell()
  Stall last_;                  // the newest one, for the line at its end
  double typical_seconds_ = 0;  // between control rounds; 0 = none seen
  std::optional<Clock::time_point> last_round_;
  std::optional<Clock::time_point> last_time_;  // of this thread's last call
  Clock::time_point awake_since_{};
  bool has_given_up_ = false;
};

}  // namespace cox::runtime
