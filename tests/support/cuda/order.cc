#include "tests/support/cuda/order.h"

#include <algorithm>

namespace cox::standin {

std::uint64_t Clock::advance(Actor actor) {
  if (actor >= ticks_.size()) ticks_.resize(actor + 1);
  return ++ticks_[actor];
}

void Clock::join(const Clock& other) {
  if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size());
  for (std::size_t i = 0; i < other.ticks_.size(); ++i)
    ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
}

std::map<std::uintptr_t, AccessMap::Interval>::iterator AccessMap::divide(std::uintptr_t at) {
  auto next = intervals_.lower_bound(at);
  if (next == intervals_.begin() || (next != intervals_.end() && next->first == at)) return next;
  const auto before = std::prev(next);
  if (before->second.end <= at) return next;
  Interval upper = before->second;
  before->second.end = at;
  return intervals_.emplace_hint(next, at, std::move(upper));
}

void AccessMap::fill_gaps(std::uintptr_t begin, std::uintptr_t end) {
  std::uintptr_t at = begin;
  for (auto i = intervals_.lower_bound(begin); at < end; ++i) {
    const std::uintptr_t until = i == intervals_.end() ? end : std::min(i->first, end);
    if (at < until) i = intervals_.emplace_hint(i, at, Interval{until, {}, {}});
    at = i->second.end;
  }
}

void AccessMap::enter(std::uintptr_t begin, std::uintptr_t end, bool writes, const Access& access,
                      const Clock& clock, const std::function<void(const Race&)>& report) {
  const auto last = divide(end);
  const auto first = divide(begin);
  const auto check = [&](const Access& earlier, bool earlier_writes, std::uintptr_t address) {
    if (earlier.actor != access.actor && earlier.tick > clock.of(earlier.actor))
      report({std::max(address, begin), earlier, access, earlier_writes, writes});
  };
  for (auto i = first; i != last; ++i) {
    check(i->second.write, true, i->first);
    for (const Access& read : i->second.reads)
      if (writes) check(read, false, i->first);
  }
  if (writes) {
    intervals_.erase(first, last);
    intervals_[begin] = {end, access, {}};
    return;
  }
  fill_gaps(begin, end);
  for (auto i = intervals_.lower_bound(begin); i != intervals_.end() && i->first < end; ++i) {
    auto& reads = i->second.reads;
    const auto mine = std::find_if(reads.begin(), reads.end(),
                                   [&](const Access& read) { return read.actor == access.actor; });
    if (mine == reads.end()) {
      reads.push_back(access);
    } else {
      *mine = access;
    }
  }
}

void AccessMap::forget(std::uintptr_t begin, std::uintptr_t end) {
  const auto last = divide(end);
  intervals_.erase(divide(begin), last);
}

}  // namespace cox::standin
