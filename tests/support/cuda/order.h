// Which work on which stream is ordered before which: vector clocks (Fidge, Mattern), and the last
// accesses to every interval of addresses. An actor is a stream; the host has no ticks of its own,
// since it submits in the order of its program, and what it knows is the clock that it hands to a
// stream with each submission. All threads of the host count as one: their order among each other
// is ThreadSanitizer's business.
//
// Thread rule: none of its own; the runtime calls under its lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace cox::standin {

using Actor = std::uint32_t;

class Clock {
 public:
  std::uint64_t of(Actor actor) const { return actor < ticks_.size() ? ticks_[actor] : 0; }
  std::uint64_t advance(Actor actor);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> ticks_;
};

// One piece of work on a stream.
struct Access {
  Actor actor = 0;
  std::uint64_t tick = 0;  // 0: there was none
  const char* what = "";   // lives as long as the process
};

struct Race {
  std::uintptr_t address = 0;
  Access earlier, later;
  bool earlier_writes = false, later_writes = false;
};

class AccessMap {
 public:
  // Enters an access to [begin, end) by work that knows `clock`, and reports each earlier access
  // that is not ordered before it. An interval that is in part accessed is divided there.
  void enter(std::uintptr_t begin, std::uintptr_t end, bool writes, const Access& access,
             const Clock& clock, const std::function<void(const Race&)>& report);

  // Memory was given back: what comes at the same addresses is unrelated.
  void forget(std::uintptr_t begin, std::uintptr_t end);

 private:
  struct Interval {
    std::uintptr_t end = 0;
    Access write;
    std::vector<Access> reads;  // since the write, the last of each actor
  };
  std::map<std::uintptr_t, Interval>::iterator divide(std::uintptr_t at);
  void fill_gaps(std::uintptr_t begin, std::uintptr_t end);

  std::map<std::uintptr_t, Interval> intervals_;  // by begin; they do not overlap
};

}  // namespace cox::standin
