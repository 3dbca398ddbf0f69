// RunQueue tells for how long a thread was ready to run and had no core, since it began: what a
// machine with more ranks than cores takes from each of them. The kernel counts it
// (/proc/PID/task/TID/schedstat, second field; Linux with CONFIG_SCHED_INFO). One thread makes and
// reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/units.h"

namespace cox::detail {

// Returns the second field of a schedstat file, nanoseconds; empty when there is none. Pure.
std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat);

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

}  // namespace cox::detail
