// WorkThread runs one piece of work at a time beside its owner: a save beside the steps of a loop,
// or a write beside the copy of the next bytes. One thread calls all functions; only the work runs
// on a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "coordinator/core/status.h"

namespace cox::io {

class WorkThread {
 public:
  using Work = std::function<Status()>;

  WorkThread() = default;
  // Waits for the work.
  ~WorkThread() { static_cast<void>(finish()); }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  // Starts the work. Runs the work here if no thread can be started. REQUIRES: finish() or
  // take_outcome() has returned the outcome of earlier work.
  void begin(Work work);
  bool is_busy() const { return is_begun_ && !is_done_.load(std::memory_order_acquire); }
  // Returns the outcome of the work, once. Returns nothing if there is no work or it is not done
  // yet.
  std::optional<Status> take_outcome() { return is_busy() ? std::nullopt : finish(); }
  // Waits for the work. take_outcome() then returns the outcome.
  void wait();
  // Waits for the work and returns its outcome, once.
  std::optional<Status> finish();

 private:
  std::thread thread_;
  bool is_begun_ = false;
  std::atomic<bool> is_done_{false};
  Status outcome_;  // written before is_done_ is set
};

}  // namespace cox::io
