// RoundPace: how often the coordinator looks whether a round's reports are there. Being woken is a
// system call on the thread that trains, and where the other core sleeps an interrupt to it: 57 us
// of a step, measured in a virtual machine. But rounds of training come at a steady pace and their
// answer is not needed before the next step ends, so a reader that looks twice a step loses
// nothing. Pure: time comes in. The coordinator's thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace cox::runtime {

class RoundPace {
 public:
  using Clock = std::chrono::steady_clock;

  // So many naps at most are slept without a bell, then the reader asks to be woken: something has
  // changed.
  static constexpr int kNaps = 16;

  // A round's reports were complete.
  void round_at(Clock::time_point now);
  // Half the shortest of the last rounds, at most 50 ms. 0: be woken, because rounds come in less
  // than 4 ms or too few are known.
  std::chrono::nanoseconds nap() const;

 private:
  std::array<Clock::time_point, 5> ends_{};  // the last ones, in turn
  std::size_t rounds_ = 0;
};

}  // namespace cox::runtime
