// WorkThread does one piece of work after another beside its owner: a save beside the steps of a
// loop, a write beside the copy of the next bytes. One thread calls all of it; the work alone runs
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

  // Begins the work, or does all of it where no thread can be started. REQUIRES: finish() or
  // take_outcome() has returned that of the work before.
  void begin(Work work);
  bool is_busy() const { return is_begun_ && !is_done_.load(std::memory_order_acquire); }
  // Returns what came of the work, once; nothing where there is none, or it is still being done.
  std::optional<Status> take_outcome() { return is_busy() ? std::nullopt : finish(); }
  // Waits for the work; take_outcome() then tells what came of it.
  void wait();
  // Waits for the work, and returns the same.
  std::optional<Status> finish();

 private:
  std::thread thread_;
  bool is_begun_ = false;
  std::atomic<bool> is_done_{false};
  Status outcome_;  // written before is_done_ is set
};

}  // namespace cox::io
