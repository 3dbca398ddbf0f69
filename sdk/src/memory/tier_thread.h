// TierThread: one thread that copies memory to a TierFile and back. Reads go before writes, because
// somebody waits for them. A transfer belongs to its owner, and so does the memory it names: the
// thread only borrows both between start() and the end of finish() or cancel(). Whoever waits for a
// transfer that has not begun does it himself. All functions may be called from any thread, for one
// transfer by one thread at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "sdk/src/memory/tier_file.h"

namespace cox::detail {

struct Transfer {
  enum class Kind { write, read };
  enum class State { idle, queued, running, done, failed };

  Kind kind = Kind::write;
  void* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // in the file

  // Of the TierThread; the owner reads `error` once finish() said failed.
  State state = State::idle;
  bool abandoned = false;
  Status error;
};

class TierThread {
 public:
  explicit TierThread(TierFile file);
  // Requires: every transfer that was started has been finished or cancelled.
  ~TierThread();
  TierThread(const TierThread&) = delete;
  TierThread& operator=(const TierThread&) = delete;

  // Does not block. Requires: kind, data, bytes and offset set, not queued or running.
  void start(Transfer& transfer);
  // Blocks until it is done or failed, and returns which; idle returns at once.
  Transfer::State finish(Transfer& transfer);
  // idle afterwards. Blocks for one piece of the copy at most.
  void cancel(Transfer& transfer);

 private:
  void work();
  Transfer* next_queued();
  void take_from_queue(Transfer& transfer);
  void copy(Transfer& transfer, std::unique_lock<std::mutex>& lock);

  const TierFile file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer*> reads_;
  std::deque<Transfer*> writes_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace cox::detail
