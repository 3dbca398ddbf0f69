#include "tests/support/cuda/host_lane.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

namespace cox::test {

namespace {

std::recursive_mutex& all_streams() {
  static std::recursive_mutex mutex;
  return mutex;
}

// A collective in a stream. A collective may end before its turn, and may outlive the stream.
struct Pending {
  HostStream* stream;
  bool has_turn = false;
  bool is_finished = false;
};
using SharedPending = std::shared_ptr<Pending>;

// Pending work by number, from 1. Finished work has no entry.
std::map<std::uintptr_t, SharedPending>& all_pending() {
  static std::map<std::uintptr_t, SharedPending> all;
  return all;
}

// REQUIRES: the caller holds the lock of all streams.
SharedPending pending_of(void* work) {
  const auto found = all_pending().find(reinterpret_cast<std::uintptr_t>(work));
  return found == all_pending().end() ? nullptr : found->second;
}

using transport::Progress;
using transport::StagingBuffer;

void* begin(void* stream) {
  auto pending = std::make_shared<Pending>(Pending{static_cast<HostStream*>(stream)});
  pending->stream->give([pending] {
    pending->has_turn = true;
    return pending->is_finished;
  });
  static std::uintptr_t numbers = 0;
  const std::lock_guard lock(all_streams());
  all_pending()[++numbers] = pending;
  return reinterpret_cast<void*>(numbers);
}

void note(const void*, std::size_t, int, void*, const char*) {}

int wait_turn(void* work) {
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(50))) {
    const std::lock_guard lock(all_streams());
    const SharedPending pending = pending_of(work);
    if (pending == nullptr) return 0;
    pending->stream->drain();
    if (pending->has_turn) return 1;
  }
}

void finish(void* work) {
  const std::lock_guard lock(all_streams());
  pending_of(work)->is_finished = true;
  all_pending().erase(reinterpret_cast<std::uintptr_t>(work));
}

void* shadow(const void* address) {
  return const_cast<void*>(address);
}

constexpr StreamSeam kSeam{begin, note, wait_turn, finish, shadow};

}  // namespace

void HostStream::give(std::function<bool()> work) {
  const std::lock_guard lock(all_streams());
  work_.push_back(std::move(work));
}

bool HostStream::drain() {
  const std::lock_guard lock(all_streams());
  if (is_draining_) return false;
  is_draining_ = true;
  while (!work_.empty() && work_.front()()) work_.pop_front();
  is_draining_ = false;
  return work_.empty();
}

Result<StagingBuffer> HostLane::staging(std::size_t bytes) {
  StagingBuffer buffer;
  for (int i = 0; i < 2; ++i) memory_.push_back(std::make_unique<std::byte[]>(bytes));
  buffer.host = {memory_[memory_.size() - 2].get(), bytes};
  buffer.device = memory_.back().get();
  return buffer;
}

Status HostLane::upload(const StagingBuffer& buffer, std::size_t bytes) {
  stream_.give([buffer, bytes] {
    std::memcpy(buffer.device, buffer.host.data(), bytes);
    return true;
  });
  return ok_status();
}

Status HostLane::download(const StagingBuffer& buffer, std::size_t bytes) {
  stream_.give([buffer, bytes] {
    std::memcpy(buffer.host.data(), buffer.device, bytes);
    return true;
  });
  return ok_status();
}

std::shared_ptr<bool>& HostLane::flag(Mark mark) {
  if (marks_.size() <= mark) marks_.resize(mark + 1);
  if (marks_[mark] == nullptr) marks_[mark] = std::make_shared<bool>(true);
  return marks_[mark];
}

Status HostLane::mark(Mark mark) {
  flag(mark) = std::make_shared<bool>(false);
  stream_.give([passed = flag(mark)] { return *passed = true; });
  return ok_status();
}

Result<Progress> HostLane::passed(Mark mark) {
  const std::lock_guard lock(all_streams());
  if (*flag(mark)) return Progress::done;
  stream_.drain();
  training_.drain();
  return *flag(mark) ? Progress::done : Progress::pending;
}

Status HostLane::mark_current(Mark mark) {
  flag(mark) = std::make_shared<bool>(false);
  training_.give([passed = flag(mark)] { return *passed = true; });
  return ok_status();
}

Status HostLane::follow(Mark mark) {
  stream_.give([passed = flag(mark), training = &training_] {
    if (!*passed) training->drain();
    return *passed;
  });
  return ok_status();
}

Status HostLane::hold_current_until(Mark mark) {
  training_.give([passed = flag(mark), lane = &stream_] {
    if (!*passed) lane->drain();
    return *passed;
  });
  return ok_status();
}

std::string use_host_streams(const std::string& fake_nccl) {
  void* library = dlopen(fake_nccl.c_str(), RTLD_NOW);
  if (library == nullptr) return dlerror();
  void* use = dlsym(library, "cox_fake_nccl_use_streams");
  if (use == nullptr) return "not the fake NCCL: " + fake_nccl;
  reinterpret_cast<void (*)(const StreamSeam*)>(use)(&kSeam);
  return "";
}

}  // namespace cox::test
