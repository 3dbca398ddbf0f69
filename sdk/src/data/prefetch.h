// Prefetcher gets the batches of coming steps on a thread of its own, while the training thread
// computes. The trainer requests a batch some steps ahead and takes it when its step begins:
//
//   prefetcher.request(step + depth, indices);   // under the shares in force now
//   Batch batch = prefetcher.take(step);         // waits only if it is not there yet
//
// That thread alone gets the batches, one at a time and in the order of the requests, so a source
// that is slow or counts its calls meets no second caller. At most `depth` batches are requested
// and not taken, which bounds memory. Where no thread can be started, take() gets the batches. An
// exception of the source comes out of take(). The prefetcher owns its thread and the batches; the
// source's data must outlive it. Only the thread that trains calls it.
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
  // Waits for the batch that is being got, if any.
  ~Prefetcher() {
    cancel();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Returns resource_exhausted where the thread could not be started: take() gets batches then.
  const Status& thread_status() const { return thread_status_; }

  // Requests a batch and does not block. Returns false and changes nothing when `depth` batches are
  // requested already. Throws cox::Error if this key is.
  bool request(std::uint64_t key, std::vector<std::int64_t> indices) {
    if (holds(key)) {
      throw Error(failed_precondition("prefetch: expected batch " + std::to_string(key) +
                                      " to be requested once, found it requested again"));
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

  // Blocks until the batch is there and hands it over. Throws what the source threw for it, and
  // cox::Error if it was not requested.
  Value take(std::uint64_t key) {
    const auto slot = std::ranges::find(slots_, key, &Slot::key);
    if (slot == slots_.end()) {
      throw Error(failed_precondition("prefetch: expected batch " + std::to_string(key) +
                                      " to be requested before take(), found that it was not"));
    }
    std::future<Value> batch = std::move(slot->batch);
    slots_.erase(slot);
    if (!thread_.joinable()) get_until(batch);
    return batch.get();
  }

  // Forgets all requests (after a rollback, say). Blocks until the batch that is being got is
  // there.
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
  std::vector<Slot> slots_;  // in the order of asking; the thread does not touch them
  std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;
  std::deque<Task> queue_;
  bool is_busy_ = false;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace cox::detail
