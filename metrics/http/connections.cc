#include "metrics/http/connections.h"

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

void OpenPages::begins_to_follow(Follower who) {
  const std::lock_guard lock(mutex_);
  ++following_;
  if (who == Follower::page && !times_.empty()) times_.pop_back();
}

void OpenPages::stops_to_follow() {
  {
    const std::lock_guard lock(mutex_);
    --following_;
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
  fetched_.wait_until(lock, now + period_,
                      [&] { return fetched_after(now) >= expected && following_ == 0; });
}

// REQUIRES: the mutex is held.
std::size_t OpenPages::fetched_after(Clock::time_point time) const {
  const auto first = std::upper_bound(times_.begin(), times_.end(), time);
  return static_cast<std::size_t>(times_.end() - first);
}

namespace {

bool is_this_machine(std::uint32_t address) {
  return address >> 24 == 127;
}

}  // namespace

ConnectionLimits connection_limits(std::uint64_t descriptors) {
  ConnectionLimits limits;
  limits.total = static_cast<std::size_t>(std::clamp<std::uint64_t>(descriptors / 2, 16, 4096));
  return limits;
}

ConnectionTable::Admission ConnectionTable::admit(std::uint32_t address) {
  Admission admission;
  const auto peer = of_peer_.find(address);
  const bool is_crowd = !is_this_machine(address) && peer != of_peer_.end() &&
                        peer->second.size() >= limits_.per_peer;
  if (is_crowd) {
    admission.evicted = take_out(*peer->second.begin());
  } else if (open_.size() >= limits_.total) {
    admission.evicted = evict();
  }
  admission.id = ++last_;
  open_.emplace(admission.id, Entry{address, Phase::asking});
  places_.insert({Phase::asking, admission.id});
  of_peer_[address].insert({Phase::asking, admission.id});
  return admission;
}

std::optional<ConnectionTable::Id> ConnectionTable::set_phase(Id id, Phase phase) {
  const auto found = open_.find(id);
  if (found == open_.end()) return std::nullopt;
  Entry& entry = found->second;
  for (Places* places : {&places_, &of_peer_[entry.address]}) {
    places->erase({entry.phase, id});
    places->insert({phase, id});
  }
  if (entry.phase == Phase::answering) --answering_;
  if (phase == Phase::answering) ++answering_;
  entry.phase = phase;
  if (answering_ <= limits_.answers) return std::nullopt;
  return take_out(*places_.lower_bound({Phase::answering, 0}));
}

std::optional<ConnectionTable::Id> ConnectionTable::evict() {
  if (places_.empty()) return std::nullopt;
  return take_out(*places_.begin());
}

void ConnectionTable::remove(Id id) {
  const auto found = open_.find(id);
  if (found != open_.end()) take_out({found->second.phase, id});
}

ConnectionTable::Id ConnectionTable::take_out(const Place& place) {
  const Place gone = place;  // a copy: `place` may refer into a set
  const auto entry = open_.find(gone.id);
  const auto peer = of_peer_.find(entry->second.address);
  peer->second.erase(gone);
  if (peer->second.empty()) of_peer_.erase(peer);
  places_.erase(gone);
  if (gone.phase == Phase::answering) --answering_;
  open_.erase(entry);
  return gone.id;
}

}  // namespace cox::metrics
