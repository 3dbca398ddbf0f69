// TickClock: the steady clock, read by the processor's counter of ticks, which takes a third of the
// time. The training thread's sections of a step are timed with it (step_scope.cc); whatever else
// asks for the time asks the steady clock itself, and the two agree to well below a microsecond.
//
// Ticks are trusted where the kernel keeps its own time by them (constant rate, the same on all
// cores). Their rate is measured against the steady clock, first over 10 ms, then over each second,
// and every millisecond the clock starts from the steady clock again, so that an error of the rate
// cannot add up. Where the two do not fit, ticks are given up for good. Without a counter this is
// the steady clock. One thread.
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

// Returns whether the kernel keeps its time by the counter that TickSource reads.
// `clock_source`: the kernel's file that names it.
bool has_steady_ticks(
    const char* clock_source = "/sys/devices/system/clocksource/clocksource0/current_clocksource");

// Returns the time of day, for what people read and files keep. Any thread.
UnixTime wall_clock();

// TickSource is where a TickClock reads; tests have another one.
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

  // Without `has_ticks` it is the steady clock.
  explicit BasicTickClock(bool has_ticks) : has_ticks_(has_ticks) {
    if (has_ticks_) first_ = last_ = read_both();
  }

  // Never goes back.
  Time now() {
    if (!has_ticks_) return told_ = std::max(told_, Source::now());
    const std::uint64_t since = Source::ticks() - last_.ticks;
    if (since >= good_for_) return start_again();
    return told_ = std::max(told_, last_.time + elapsed(since));
  }

  bool uses_ticks() const { return has_ticks_ && good_for_ > 0; }

 private:
  static constexpr Nanoseconds kGoodFor = std::chrono::milliseconds(1);
  static constexpr Nanoseconds kFirstBase = std::chrono::milliseconds(10);  // of a rate
  static constexpr Nanoseconds kBase = std::chrono::seconds(1);             // of later ones
  static constexpr std::uint64_t kWidest = 10'000;  // ticks around a reading that counts
  static constexpr double kMostError = 1e-3;        // of an interval, beyond that width

  struct Reading {
    Time time{};
    std::uint64_t ticks = 0;
    bool counts = false;  // no pause between the two
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
  Reading first_{};  // what the rate is measured from
  Reading last_{};
  double ns_per_tick_ = 0;      // 0 = not known yet
  std::uint64_t good_for_ = 0;  // ticks after `last_`
  Time told_{};
};

using TickClock = BasicTickClock<TickSource>;

}  // namespace cox::detail
