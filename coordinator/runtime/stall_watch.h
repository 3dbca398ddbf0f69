// StallWatch: finds the ranks that delay others. While no round comes, the watch reads the marks of
// all ranks and derives the stall (core/stall.h). The log gets one line at the start of a stall and
// one at its end; telemetry gets the newest stall at every look. A stall beyond
// control.wait_seconds ends the job. The watch works while rank 0's training thread stands still,
// because marks are read from memory. Thread rule: the coordinator's thread. The ControlPlane of
// rank 0 owns the watch.
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
  // Returns the marks of all ranks, ascending.
  std::function<std::vector<RankMark>(transport::MarkClock::time_point now)> read;
  std::function<void(const std::optional<Stall>&)> show;  // to telemetry; may be empty
  // Called once, with the message, when a wait exceeds the limit; may be empty.
  std::function<void(const std::string& why)> give_up;
  Seconds limit{3600};
  Log log;
};

class StallWatch {
 public:
  using Clock = transport::MarkClock;

  explicit StallWatch(StallWatchParts parts) : parts_(std::move(parts)) {}

  // Call after a control round has closed.
  void round_closed(Clock::time_point now);
  // Call when nothing has come for a while. Only look() reads marks, so ordinary rounds cost
  // nothing.
  void look(Clock::time_point now);

  const std::optional<Stall>& stall() const { return stall_; }

 private:
  void note_time(Clock::time_point now);
  std::vector<RankMark> marks_of_now(Clock::time_point now) const;
  void tell();
  void tell_end();

  StallWatchParts parts_;
  std::optional<Stall> stall_;
  std::string told_;            // key of the stall in the last line: see tell()
  Stall last_;                  // the newest stall, for the line at its end
  double typical_seconds_ = 0;  // between control rounds; 0 = none seen
  std::optional<Clock::time_point> last_round_;
  std::optional<Clock::time_point> last_time_;  // of this thread's last call
  Clock::time_point awake_since_{};
  bool has_given_up_ = false;
};

}  // namespace cox::runtime
