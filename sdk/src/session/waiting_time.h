// WaitingTime adds up how long a step of this rank waited: in calls for the last rank to arrive,
// and in the kernel's run queue for a core. Owned by the StepRecorder; training thread. Nothing
// allocates after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/phase.h"
#include "coordinator/core/units.h"

namespace cox::detail {

// Returns the second field of a schedstat file, nanoseconds; empty when there is none. Pure.
std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat);

// RunQueue tells for how long a thread was ready to run and had no core, since it began: what a
// machine with more ranks than cores takes from each of them. The kernel counts it
// (/proc/PID/task/TID/schedstat, second field; Linux with CONFIG_SCHED_INFO). One thread makes and
// reads it.
class RunQueue {
 public:
  // Opens the file of the thread that calls. Empty where it cannot be read.
  static std::optional<RunQueue> of_this_thread(const std::string& proc = "/proc");
  RunQueue(RunQueue&& other) noexcept
      : file_(std::exchange(other.file_, -1)), last_ns_(other.last_ns_) {}
  RunQueue& operator=(RunQueue&& other) noexcept {
    std::swap(file_, other.file_);
    last_ns_ = other.last_ns_;
    return *this;
  }
  ~RunQueue();

  // Returns the time so far; what was read last where it cannot be read any more. One system call.
  Seconds queued();

 private:
  explicit RunQueue(int file) : file_(file) {}
  int file_ = -1;
  std::uint64_t last_ns_ = 0;
};

class WaitingTime {
 public:
  // Leaves out of phases, from here on, the time for which the thread stood in the run queue: it is
  // booked on communication, as waiting. Costs a system call a section. `queued` returns that time
  // since the thread began.
  void leave_out_queueing(std::function<Seconds()> queued);
  bool leaves_out_queueing() const { return static_cast<bool>(queued_); }

  // A step begins.
  void begin();
  // Returns the part of a section of `phase`, of `seconds`, in which the thread was in the run
  // queue; 0 where queueing is not left out.
  double take_queued(Phase phase, double seconds) {
    return queued_ ? read_queued(phase, seconds) : 0;
  }
  // The time in the run queue until now belongs to no section.
  void pass_over();
  // A collective call of the open step began with a wait of `seconds` for the last rank; an empty
  // one says that nobody knows how long, so the step's waiting is not known.
  void waited(std::optional<double> seconds);

  // Returns the step's waiting, a part of its `communication`; nothing where it is not known.
  std::optional<double> seconds(double communication) const;

 private:
  double read_queued(Phase phase, double seconds);

  std::function<Seconds()> queued_;  // empty where ranks have cores
  Seconds queued_until_{0};
  double queued_elsewhere_ = 0;   // seconds in the run queue in phases other than communication
  double queued_in_calls_ = 0;    // in communication
  double waited_ = 0;             // for the last rank, in calls
  bool has_called_ = false;       // waited() was called
  bool is_waiting_known_ = true;  // in every call so far
};

}  // namespace cox::detail
