// OpenPages counts the status pages that are open in browsers. Such a page fetches itself again
// after some seconds (status_page.h), so one that was fetched lately is expected back. The server
// tells it of every fetch; when the job ends, rank 0 waits here until all of them have seen the
// end. Any thread may call it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>

namespace cox::metrics {

class OpenPages {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostCounted = 64;

  // `period`: a page that was not fetched for so long is closed.
  explicit OpenPages(Clock::duration period) : period_(period) {}

  void fetched(Clock::time_point now);

  // Returns how many fetches of the last period there were, at most kMostCounted.
  std::size_t count(Clock::time_point now) const;

  // Blocks until as many pages were fetched after `now` as are open at `now`, at most for a period.
  // Returns at once where none is open. REQUIRES: fetches after `now` get a page that stays.
  void wait_for_last_look(Clock::time_point now);

 private:
  std::size_t fetched_after(Clock::time_point time) const;

  const Clock::duration period_;
  mutable std::mutex mutex_;
  std::condition_variable fetched_;
  std::deque<Clock::time_point> times_;  // ascending, the newest kMostCounted
};

}  // namespace cox::metrics
