// TickClock is the steady clock, read by the processor's counter of ticks in a third of the time.
// The training thread times sections of a step with it (step_scope.cc); all other code reads the
// steady clock itself. The two clocks agree to well below a microsecond. One thread.
//
// Ticks are used if the kernel keeps its own time by them (constant rate, the same on all cores).
// The rate is measured against the steady clock, first over 10 ms, then over each second. Every
// millisecond the clock restarts from the steady clock, so errors of the rate do not add up. After
// a mismatch ticks are never used again. Without a counter TickClock reads the steady clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "coordinator/core/units.h"

namespace cox::detail {

using Clock = std::chrono::steady_clock;

// Returns whether the kernel keeps its time by the counter that TickSource reads. `clock_source` is
// the kernel's file that names its counter.
bool has_steady_ticks(
    const char* clock_source = "/sys/devices/system/clocksource/clocksource0/current_clocksource");

// Returns the time of day, for people and files. Any thread.
UnixTime wall_clock();

// TickSource is the source of a TickClock; tests use another one.
struct TickSource {
  static Clock::time_point now() { return Clock::now(); }
  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return 0;
#endif
  }
};

template <class Source>
class BasicTickClock {
 public:
  using Time = Clock::time_point;
  using Nanoseconds = std::chrono::nanoseconds;

  // Reads the steady clock only, unless `has_ticks`.
  explicit BasicTickClock(bool has_ticks) : has_ticks_(has_ticks) {
    if (has_ticks_) first_ = last_ = read_both();
  }

  // Returns the present time, never less than before.
  Time now() {
    if (!has_ticks_) return told_ = std::max(told_, Source::now());
    const std::uint64_t since = Source::ticks() - last_.ticks;
    if (since >= good_for_) return start_again();
    return told_ = std::max(told_, last_.time + elapsed(since));
  }

  bool uses_ticks() const { return has_ticks_ && good_for_ > 0; }

 private:
  static constexpr Nanoseconds kGoodFor = std::chrono::milliseconds(1);
  static constexpr Nanoseconds kFirstBase = std::chrono::milliseconds(10);  // for the first rate
  static constexpr Nanoseconds kBase = std::chrono::seconds(1);             // for later rates
  static constexpr std::uint64_t kWidest = 10'000;  // ticks around a valid reading
  static constexpr double kMostError = 1e-3;        // relative to an interval, beyond kWidest

  struct Reading {
    Time time{};
    std::uint64_t ticks = 0;
    bool counts = false;  // no pause between time and ticks
  };

  static Reading read_both() {
    const std::uint64_t before = Source::ticks();
    const Time time = Source::now();
    const std::uint64_t width = Source::ticks() - before;
    return {time, before + width / 2, width <= kWidest};
  }

  Nanoseconds elapsed(std::uint64_t ticks) const {
    return Nanoseconds(static_cast<std::int64_t>(static_cast<double>(ticks) * ns_per_tick_));
  }

  Time start_again() {
    const Reading next = read_both();
    if (next.counts && last_.counts && !fits(next)) has_ticks_ = false;
    if (next.counts) learn_rate(next);
    return told_ = std::max(told_, next.time);
  }

  void learn_rate(const Reading& next) {
    last_ = next;
    if (!first_.counts) first_ = next;
    const Nanoseconds base = next.time - first_.time;
    if (base < (ns_per_tick_ > 0 ? kBase : kFirstBase) || next.ticks <= first_.ticks) return;
    ns_per_tick_ =
        static_cast<double>(base.count()) / static_cast<double>(next.ticks - first_.ticks);
    good_for_ = static_cast<std::uint64_t>(static_cast<double>(kGoodFor.count()) / ns_per_tick_);
    first_ = next;
  }

  bool fits(const Reading& next) const {
    if (ns_per_tick_ == 0) return true;
    if (next.ticks < last_.ticks) return false;
    const Nanoseconds passed = next.time - last_.time;
    const Nanoseconds error = elapsed(next.ticks - last_.ticks) - passed;
    const double most = static_cast<double>(elapsed(2 * kWidest).count()) +
                        kMostError * static_cast<double>(passed.count());
    return static_cast<double>(std::chrono::abs(error).count()) <= most;
  }

  bool has_ticks_;
  Reading first_{};  // base of the rate
  Reading last_{};
  double ns_per_tick_ = 0;      // 0 = not known yet
  std::uint64_t good_for_ = 0;  // ticks after `last_`
  Time told_{};
};

using TickClock = BasicTickClock<TickSource>;

}  // namespace cox::detail
