#include "coordinator/runtime/round_pace.h"

#include <algorithm>

namespace cox::runtime {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

void RoundPace::round_at(Clock::time_point now) {
  ends_[rounds_++ % ends_.size()] = now;
}

nanoseconds RoundPace::nap() const {
  if (rounds_ < ends_.size()) return nanoseconds(0);
  nanoseconds shortest = nanoseconds::max();
  for (std::size_t i = rounds_ - ends_.size() + 1; i < rounds_; ++i) {
    const nanoseconds interval = ends_[i % ends_.size()] - ends_[(i - 1) % ends_.size()];
    shortest = std::min(shortest, interval);
  }
  if (shortest < milliseconds(4)) return nanoseconds(0);
  return std::min<nanoseconds>(shortest / 2, milliseconds(50));
}

}  // namespace cox::runtime
