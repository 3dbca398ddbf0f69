// A rank's end of a fake communicator. Takes calls in order and hands them to their streams. A
// worker waits until a stream reaches a collective, meets the other ranks in shared memory, and
// moves the bytes. No call completes in the calling thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/transport/nccl/abi.h"
#include "tests/support/cuda/nccl/meeting.h"
#include "tests/support/cuda/nccl/script.h"
#include "tests/support/cuda/nccl/stream_seam.h"
#include "tests/support/cuda/nccl/sums.h"

namespace cox::transport::nccl {

using test::CollectiveCall;
using test::InitFault;
using test::kSlotBytes;
using test::Meeting;
using test::NcclScript;
using test::StreamSeam;

enum Kind : std::int32_t { kBroadcast, kAllReduce };

inline constexpr const char* kNames[] = {"ncclBroadcast", "ncclAllReduce"};

// Returns the streams for collectives: those of cox_fake_nccl_use_streams(), else those of the
// stand-in runtime, else null.
const StreamSeam* streams();

// Returns the script in the environment.
inline NcclScript script_now() {
  const char* text = std::getenv("COX_FAKE_NCCL");
  return NcclScript(text != nullptr ? text : "");
}

struct Collective {
  CollectiveCall call;
  const void* send = nullptr;
  void* receive = nullptr;
  void* stream = nullptr;
  void* work = nullptr;  // pending in the stream; null without streams
  std::uint64_t number = 0;
};

struct NamedId {
  std::uint64_t magic;
  std::uint32_t serial;
  char name[100];
};
static_assert(sizeof(NamedId) <= sizeof(UniqueId));
constexpr std::uint64_t kMagic = 0x4E43434C46414B45;

struct Communicator {
 public:
  Communicator(const NamedId& id, int ranks, int rank)
      : id_(id), ranks_(ranks), rank_(rank), script_(script_now()) {
    worker_ = std::thread([this] { work(); });
  }

  // Wakes a worker that waits for its turn in a stream; a worker that meets the others gives up.
  ~Communicator() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      if (waits_for_turn_) streams()->finish(std::exchange(waits_for_turn_, nullptr));
    }
    changed_.notify_all();
    worker_.join();
  }

  void wait_for_start() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return has_started_ || error_ != Outcome::success; });
  }

  Outcome state() {
    const std::lock_guard lock(mutex_);
    if (error_ != Outcome::success) return error_;
    if (!has_started_) return Outcome::in_progress;
    if (!launching_.empty() && --polls_left_ <= 0) hand_over();
    if (!launching_.empty()) return Outcome::in_progress;
    if (is_finalizing_ && (is_busy_ || !queue_.empty())) return Outcome::in_progress;
    return Outcome::success;
  }

  int rank() const { return rank_; }
  bool hangs_in_abort() const { return script_.hangs_in_abort(id_.serial, rank_); }
  bool is_launching() {
    const std::lock_guard lock(mutex_);
    return error_ == Outcome::success && !launching_.empty();
  }
  Outcome refuse(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return fail(Outcome::invalid_usage, text);
  }

  Outcome launch(Collective call) {
    const std::lock_guard lock(mutex_);
    if (error_ != Outcome::success) return error_;
    if (!has_started_ || !launching_.empty()) {
      return fail(Outcome::invalid_usage, "a call before the last one has settled");
    }
    if (is_finalizing_) return fail(Outcome::invalid_usage, "a call after ncclCommFinalize");
    call.number = next_++;
    launching_.push_back(call);
    polls_left_ = script_.polls_to_settle(id_.serial, rank_);
    if (polls_left_ == 0) hand_over();
    return launching_.empty() ? Outcome::success : Outcome::in_progress;
  }

  Outcome finalize() {
    const std::lock_guard lock(mutex_);
    if (error_ != Outcome::success) return error_;
    is_finalizing_ = true;
    return Outcome::in_progress;
  }

  std::string last_error() {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  Outcome fail(Outcome outcome, const std::string& text) {
    if (error_ == Outcome::success) {
      error_ = outcome;
      last_error_ = "fake NCCL, rank " + std::to_string(rank_) + ": " + text;
    }
    changed_.notify_all();
    return outcome;
  }
  void fail_later(Outcome outcome, const std::string& text) {
    const std::lock_guard lock(mutex_);
    fail(outcome, text);
  }

  // Makes the streams wait for these collectives.
  void hand_over() {
    const StreamSeam* seam = streams();
    for (Collective& call : launching_) {
      if (seam != nullptr) begin(*seam, call);
      queue_.push_back(call);
    }
    launching_.clear();
    changed_.notify_all();
  }

  void begin(const StreamSeam& seam, Collective& it) const {
    const char* name = kNames[it.call.kind];
    it.work = seam.begin(it.stream);
    if (gives(it)) seam.note(it.send, bytes_of_count(it), 0, it.stream, name);
    seam.note(it.receive, bytes_of_count(it), 1, it.stream, name);
  }

  void work() {
    if (start()) {
      while (std::unique_ptr<Collective> next = take()) {
        const bool has_turn = wait_for_turn(*next);
        if (has_turn && !perform(*next)) wait_for_end();
        if (has_turn && next->work != nullptr) streams()->finish(next->work);
        const std::lock_guard lock(mutex_);
        is_busy_ = false;
      }
    }
    wait_for_end();
    for (const Collective& call : queue_) {
      if (call.work != nullptr) streams()->finish(call.work);
    }
  }

  bool start() {
    const InitFault fault = script_.of_init(id_.serial, rank_);
    if (fault == InitFault::hang) return false;
    if (fault == InitFault::error) {
      fail_later(Outcome::system_error, "its start was scripted to fail later");
      return false;
    }
    meeting_ = Meeting::open(id_.name, ranks_, rank_);
    if (meeting_ == nullptr) {
      fail_later(Outcome::system_error, "no shared memory, or ranks that differ in their number");
      return false;
    }
    if (!barrier()) return false;
    const std::lock_guard lock(mutex_);
    has_started_ = true;
    changed_.notify_all();
    return true;
  }

  std::unique_ptr<Collective> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_over_ || !queue_.empty(); });
    if (is_over_) return nullptr;
    auto next = std::make_unique<Collective>(queue_.front());
    queue_.pop_front();
    is_busy_ = true;
    return next;
  }

  void wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_over_.load(); });
  }

  bool barrier() {
    return meeting_->barrier([this] { return is_over_.load(); });
  }

  // Returns false if the communicator ends first; then the work is finished.
  bool wait_for_turn(const Collective& it) {
    if (it.work == nullptr) return true;
    {
      const std::lock_guard lock(mutex_);
      if (is_over_) {
        streams()->finish(it.work);
        return false;
      }
      waits_for_turn_ = it.work;
    }
    const bool has_turn = streams()->wait_turn(it.work) != 0;
    const std::lock_guard lock(mutex_);
    return std::exchange(waits_for_turn_, nullptr) != nullptr && has_turn;
  }

  // Returns false if this collective never completes.
  bool perform(const Collective& it) {
    const auto fault =
        script_.of_collective(id_.serial, rank_, static_cast<std::int64_t>(it.number));
    if (fault.slow_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(fault.slow_us));
    if (fault.error != 0) {
      fail_later(static_cast<Outcome>(fault.error),
                 "collective " + std::to_string(it.number) + " was scripted to fail");
    }
    if (fault.error != 0 || fault.lost) return false;
    meeting_->declare(it.number, it.call);
    return barrier() && all_call_the_same(it) && move(it);
  }

  bool all_call_the_same(const Collective& it) {
    for (int r = 0; r < ranks_; ++r) {
      const CollectiveCall other = meeting_->declared(it.number, r);
      if (other == it.call) continue;
      fail_later(Outcome::invalid_usage, "collective " + std::to_string(it.number) +
                                             ": this rank calls " + describe(it.call) + ", rank " +
                                             std::to_string(r) + " calls " + describe(other));
      return false;
    }
    return true;
  }

  bool gives(const Collective& it) const {
    return it.call.kind != kBroadcast || it.call.root == rank_;
  }
  static std::size_t bytes_of_count(const Collective& it) {
    return it.call.count * bytes_of(static_cast<Type>(it.call.type));
  }

  bool move(const Collective& it) {
    const std::size_t total = bytes_of_count(it);
    const bool has_part = gives(it);
    const std::byte* send = reachable(it, it.send);
    std::byte* receive = reachable(it, it.receive);
    for (std::size_t from = 0; from < total; from += kSlotBytes) {
      const std::size_t bytes = std::min(kSlotBytes, total - from);
      if (has_part) std::memcpy(meeting_->slot(rank_), send + from, bytes);
      if (!barrier()) return false;
      receive_chunk(it, receive + from, bytes);
      if (!barrier()) return false;
    }
    return true;
  }

  void receive_chunk(const Collective& it, std::byte* receive, std::size_t bytes) {
    if (it.call.kind == kBroadcast) {
      std::memcpy(receive, meeting_->slot(it.call.root), bytes);
      return;
    }
    std::memcpy(receive, meeting_->slot(0), bytes);
    const auto operation = static_cast<Operator>(it.call.operation);
    test::with_type(static_cast<Type>(it.call.type), [&](auto value) {
      for (int r = 1; r < ranks_; ++r) {
        test::reduce<decltype(value)>(receive, meeting_->slot(r), bytes / sizeof value, operation);
      }
    });
  }

  static std::byte* reachable(const Collective& it, const void* address) {
    void* at = it.work == nullptr ? const_cast<void*>(address) : streams()->shadow(address);
    return static_cast<std::byte*>(at);
  }

  const NamedId id_;
  const int ranks_;
  const int rank_;
  const NcclScript script_;
  std::unique_ptr<Meeting> meeting_;  // used by the worker
  std::mutex mutex_;                  // guards the members below
  std::condition_variable changed_;
  std::vector<Collective> launching_;
  std::int64_t polls_left_ = 0;
  std::deque<Collective> queue_;
  std::uint64_t next_ = 0;
  Outcome error_ = Outcome::success;
  std::string last_error_;
  bool has_started_ = false;
  bool is_finalizing_ = false;
  bool is_busy_ = false;
  void* waits_for_turn_ = nullptr;  // the work whose turn the worker waits for
  std::atomic<bool> is_over_{false};
  std::thread worker_;
};

}  // namespace cox::transport::nccl
