// Prefetcher gets the batches of coming steps on a thread of its own, while the training thread
// computes. The trainer requests a batch some steps ahead and takes it when its step begins:
//
//   prefetcher.request(step + depth, indices);   // under the shares in force now
//   Batch batch = prefetcher.take(step);         // waits only if it is not there yet
//
// That thread alone gets the batches, one at a time and in the order of the requests, so a source
// that is slow or counts its calls meets no second caller. At most `depth` batches are requested
// and not taken, which bounds memory. An exception of the source comes out of take(). The
// prefetcher owns its thread and the batches; the source's data must outlive it. Only the thread
// that trains calls it.
#pragma once

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coxswain/error.h"

namespace cox::detail {

// Starts a thread of ours with all signals blocked, because signals are for the program's own
// threads.
inline std::thread quiet_thread(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

template <class Value>
class Prefetcher {
 public:
  using Source = std::function<Value(std::span<const std::int64_t> indices)>;

  // REQUIRES: depth >= 1.
  Prefetcher(Source source, std::size_t depth)
      : source_(std::move(source)), depth_(depth), thread_(quiet_thread([this] { work(); })) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  // Waits for the batch that is being got, if any.
  ~Prefetcher() {
    cancel();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Requests a batch and does not block. Returns false and changes nothing when `depth` batches are
  // requested already. Throws cox::Error if this key is.
  bool request(std::uint64_t key, std::vector<std::int64_t> indices) {
    {
      const std::lock_guard lock(mutex_);
      if (find(slots_, key) != slots_.end()) {
        throw Error(failed_precondition("prefetch: expected batch " + std::to_string(key) +
                                        " to be asked for once, found it asked for again"));
      }
      if (slots_.size() >= depth_) return false;
      slots_.push_back({.key = key, .indices = std::move(indices)});
    }
    changed_.notify_all();
    return true;
  }

  // Returns whether the batch was requested, and neither taken nor cancelled.
  bool holds(std::uint64_t key) const {
    const std::lock_guard lock(mutex_);
    return find(slots_, key) != slots_.end();
  }

  // Blocks until the batch is there and hands it over. Throws what the source threw for it, and
  // cox::Error if it was not requested.
  Value take(std::uint64_t key) {
    std::unique_lock lock(mutex_);
    const auto slot = find(slots_, key);
    if (slot == slots_.end()) {
      throw Error(failed_precondition("prefetch: expected batch " + std::to_string(key) +
                                      " to be asked for, found that it was not"));
    }
    changed_.wait(lock, [&] { return slot->state == State::done; });
    Slot taken = std::move(*slot);
    slots_.erase(slot);
    lock.unlock();
    if (taken.error) std::rethrow_exception(taken.error);
    return std::move(*taken.value);
  }

  // Forgets all requests (after a rollback, say). Blocks until the batch that is being got is
  // there.
  void cancel() {
    std::unique_lock lock(mutex_);
    slots_.remove_if([](const Slot& slot) { return slot.state != State::running; });
    changed_.wait(lock, [&] { return slots_.empty() || slots_.front().state == State::done; });
    slots_.clear();
  }

 private:
  enum class State { queued, running, done };
  struct Slot {
    std::uint64_t key = 0;
    std::vector<std::int64_t> indices;
    State state = State::queued;
    std::optional<Value> value{};
    std::exception_ptr error{};
  };
  using Slots = std::list<Slot>;  // in the order of asking; a slot stays where it is

  static auto find(auto& slots, std::uint64_t key) {
    return std::ranges::find(slots, key, &Slot::key);
  }
  auto next() { return std::ranges::find(slots_, State::queued, &Slot::state); }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || next() != slots_.end(); });
      if (ending_) return;
      Slot& slot = *next();
      slot.state = State::running;
      lock.unlock();
      get(slot);
      lock.lock();
      slot.state = State::done;
      changed_.notify_all();
    }
  }

  // The lock is free: nobody else touches a running slot.
  void get(Slot& slot) const {
    try {
      slot.value.emplace(source_(slot.indices));
    } catch (...) {
      slot.error = std::current_exception();
    }
  }

  const Source source_;
  const std::size_t depth_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Slots slots_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace cox::detail
