// WaitingTime adds up how long a step of this rank waited in calls for the last rank to arrive, and
// in the kernel's run queue for a core. Owned by the StepRecorder; training thread. Nothing
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

// Returns the second field of a schedstat file, in nanoseconds; empty if there is none. Pure.
std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat);

// RunQueue reads how long a thread was ready to run and had no core, since the thread began. On a
// machine with more ranks than cores each rank loses this time. The kernel counts the time
// (/proc/PID/task/TID/schedstat, second field; Linux with CONFIG_SCHED_INFO). One thread creates
// and reads a RunQueue.
class RunQueue {
 public:
  // Opens the file of the calling thread. Empty if the file cannot be read.
  static std::optional<RunQueue> of_this_thread(const std::string& proc = "/proc");
  RunQueue(RunQueue&& other) noexcept
      : file_(std::exchange(other.file_, -1)), last_ns_(other.last_ns_) {}
  RunQueue& operator=(RunQueue&& other) noexcept {
    std::swap(file_, other.file_);
    last_ns_ = other.last_ns_;
    return *this;
  }
  ~RunQueue();

  // Returns the time so far, or the last value if the file can no longer be read. One system call.
  Seconds queued();

 private:
  explicit RunQueue(int file) : file_(file) {}
  int file_ = -1;
  std::uint64_t last_ns_ = 0;
};

class WaitingTime {
 public:
  // Excludes the thread's time in the run queue from phases, from now on. The time is booked as
  // waiting on communication. Costs a system call for each section. `queued` returns the time in
  // the run queue since the thread began.
  void leave_out_queueing(std::function<Seconds()> queued);
  bool leaves_out_queueing() const { return static_cast<bool>(queued_); }

  // Begins a step.
  void begin();
  // Returns the thread's time in the run queue within a section of `phase`, `seconds` long. Returns
  // 0 if queueing is not excluded.
  double take_queued(Phase phase, double seconds) {
    return queued_ ? read_queued(phase, seconds) : 0;
  }
  // Assigns the time in the run queue until now to no section.
  void pass_over();
  // Adds a collective call of the open step, which waited `seconds` for the last rank. An empty
  // value means an unknown wait, and makes the step's waiting unknown.
  void waited(std::optional<double> seconds);

  // Returns the step's waiting, a part of its `communication`; nothing if unknown.
  std::optional<double> seconds(double communication) const;

 private:
  double read_queued(Phase phase, double seconds);

  std::function<Seconds()> queued_;  // empty if every rank has a core
  Seconds queued_until_{0};
  double queued_elsewhere_ = 0;   // seconds in the run queue in phases other than communication
  double queued_in_calls_ = 0;    // seconds in communication
  double waited_ = 0;             // seconds for the last rank, in calls
  bool has_called_ = false;       // waited() was called
  bool is_waiting_known_ = true;  // for every call so far
};

}  // namespace cox::detail
