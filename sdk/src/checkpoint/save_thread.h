// SaveThread does one save after another beside the steps of a loop. Owned by TrainingSaves, whose
// training thread calls all of it; the work alone runs on a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "coordinator/core/status.h"

namespace cox::detail {

class SaveThread {
 public:
  using Work = std::function<Status()>;

  SaveThread() = default;
  // Waits for the work.
  ~SaveThread() { static_cast<void>(finish()); }
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

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

}  // namespace cox::detail
