// Orders work on streams with vector clocks (Fidge, Mattern), and keeps the last accesses to every
// interval of addresses. An actor is a stream. The host has no ticks of its own, because the host
// submits in program order and passes its clock to a stream with each submission. All host threads
// count as one; ThreadSanitizer checks the order between host threads.
//
// Thread rule: the runtime calls under its lock.
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
  std::uint64_t tick = 0;  // 0: no work
  const char* what = "";   // lives as long as the process
};

struct Race {
  std::uintptr_t address = 0;
  Access earlier, later;
  bool earlier_writes = false, later_writes = false;
};

class AccessMap {
 public:
  // Enters an access to [begin, end) by work that knows `clock`. Reports each earlier access that
  // is not ordered before it. Divides intervals that are accessed in part.
  void enter(std::uintptr_t begin, std::uintptr_t end, bool writes, const Access& access,
             const Clock& clock, const std::function<void(const Race&)>& report);

  // Forgets freed memory: later accesses at the same addresses are unrelated.
  void forget(std::uintptr_t begin, std::uintptr_t end);

 private:
  struct Interval {
    std::uintptr_t end = 0;
    Access write;
    std::vector<Access> reads;  // since the write: the last read of each actor
  };
  std::map<std::uintptr_t, Interval>::iterator divide(std::uintptr_t at);
  void fill_gaps(std::uintptr_t begin, std::uintptr_t end);

  std::map<std::uintptr_t, Interval> intervals_;  // by begin, without overlaps
};

}  // namespace cox::standin
