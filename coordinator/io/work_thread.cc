#include "coordinator/io/work_thread.h"

#include <utility>

#include "coordinator/io/thread.h"

namespace cox::io {

void WorkThread::begin(Work work) {
  is_begun_ = true;
  is_done_.store(false, std::memory_order_relaxed);
  const auto end = [this](Status outcome) {
    outcome_ = std::move(outcome);
    is_done_.store(true, std::memory_order_release);
  };
  auto started = start_thread(
      "a thread of work", [work, end] { end(work()); }, end);
  if (!started.ok()) return end(work());
  thread_ = std::move(*started);
}

void WorkThread::wait() {
  if (thread_.joinable()) thread_.join();
}

std::optional<Status> WorkThread::finish() {
  if (!std::exchange(is_begun_, false)) return std::nullopt;
  wait();
  return std::move(outcome_);
}

}  // namespace cox::io
