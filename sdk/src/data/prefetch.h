// Prefetcher loads the batches of coming steps on a thread of its own, while the training thread
// computes. The trainer requests a batch some steps ahead and takes the batch when its step begins:
//
//   prefetcher.request(step + depth, indices);   // under the shares in force now
//   Batch batch = prefetcher.take(step);         // waits only if the batch is not ready
//
// Only the prefetcher's thread calls the source, once for each batch and in the order of the
// requests. At most `depth` requested batches are outstanding, which bounds memory. If no thread
// can start, take() loads the batches. take() also throws exceptions of the source. Owns the thread
// and the batches. REQUIRES: the source's data outlive the prefetcher. Training thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/thread.h"
#include "coxswain/error.h"

namespace cox::detail {

template <class Value>
class Prefetcher {
 public:
  using Source = std::function<Value(std::span<const std::int64_t> indices)>;

  // REQUIRES: depth >= 1.
  Prefetcher(Source source, std::size_t depth) : source_(std::move(source)), depth_(depth) {
    auto started = io::start_thread("prefetch", [this] { work(); });
    thread_status_ = started.status();
    if (started.ok()) thread_ = *std::move(started);
  }
  // Waits for a batch that is being loaded, if any.
  ~Prefetcher() {
    cancel();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Returns resource_exhausted if the thread could not start; take() then loads batches.
  const Status& thread_status() const { return thread_status_; }

  // Requests a batch without blocking. Returns false and changes nothing if `depth` batches are
  // outstanding. Throws cox::Error if `key` is already requested.
  bool request(std::uint64_t key, std::vector<std::int64_t> indices) {
    if (holds(key)) {
      throw Error(failed_precondition("prefetch: expected batch " + std::to_string(key) +
                                      " to be requested once, found a second request"));
    }
    if (slots_.size() >= depth_) return false;
    Task task([this, wanted = std::move(indices)] { return source_(wanted); });
    slots_.push_back({key, task.get_future()});
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_all();
    return true;
  }

  // Returns whether the batch was requested, and neither taken nor cancelled.
  bool holds(std::uint64_t key) const {
    return std::ranges::find(slots_, key, &Slot::key) != slots_.end();
  }

  // Blocks until the batch is ready and returns it. Throws an exception of the source for the
  // batch, and cox::Error if `key` was not requested.
  Value take(std::uint64_t key) {
    const auto slot = std::ranges::find(slots_, key, &Slot::key);
    if (slot == slots_.end()) {
      throw Error(failed_precondition("prefetch: expected batch " + std::to_string(key) +
                                      " to be requested before take(), found no request"));
    }
    std::future<Value> batch = std::move(slot->batch);
    slots_.erase(slot);
    if (!thread_.joinable()) get_until(batch);
    return batch.get();
  }

  // Drops all requests (after a rollback, say). Blocks until the batch that is being loaded is
  // ready.
  void cancel() {
    std::unique_lock lock(mutex_);
    queue_.clear();
    changed_.wait(lock, [&] { return !is_busy_; });
    slots_.clear();
  }

 private:
  using Task = std::packaged_task<Value()>;
  struct Slot {
    std::uint64_t key = 0;
    std::future<Value> batch;
  };

  // REQUIRES: there is no thread.
  void get_until(const std::future<Value>& batch) {
    while (batch.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      Task task = std::move(queue_.front());
      queue_.pop_front();
      task();
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (ending_) return;
      is_busy_ = true;
      {
        Task task = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
      is_busy_ = false;
      changed_.notify_all();
    }
  }

  const Source source_;
  const std::size_t depth_;
  Status thread_status_;
  std::vector<Slot> slots_;  // in the order of requests; used by the training thread only
  std::mutex mutex_;         // guards the members below
  std::condition_variable changed_;
  std::deque<Task> queue_;
  bool is_busy_ = false;
  bool ending_ = false;
  std::thread thread_;  // last, because it uses the others
};

}  // namespace cox::detail
