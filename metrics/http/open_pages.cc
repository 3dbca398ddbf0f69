#include "metrics/http/open_pages.h"

#include <algorithm>

namespace cox::metrics {

void OpenPages::fetched(Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    times_.push_back(now);
    if (times_.size() > kMostCounted) times_.pop_front();
  }
  fetched_.notify_all();
}

std::size_t OpenPages::count(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return fetched_after(now - period_);
}

void OpenPages::wait_for_last_look(Clock::time_point now) {
  std::unique_lock lock(mutex_);
  const std::size_t expected = fetched_after(now - period_) - fetched_after(now);
  fetched_.wait_until(lock, now + period_, [&] { return fetched_after(now) >= expected; });
}

// REQUIRES: the mutex is held.
std::size_t OpenPages::fetched_after(Clock::time_point time) const {
  const auto first = std::upper_bound(times_.begin(), times_.end(), time);
  return static_cast<std::size_t>(times_.end() - first);
}

}  // namespace cox::metrics
