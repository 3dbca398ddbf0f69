// RequestTable: the operations of one communicator that are in flight, in slots. A slot is reused
// with its scratch memory, so starting an operation does not allocate once the largest number in
// flight was reached. A Request is a slot with a generation, so a stale request is recognised and
// never touches another operation. One thread.
#pragma once

#include <cassert>
#include <deque>
#include <string>
#include <vector>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

template <class Slot>
class RequestTable {
 public:
  struct Taken {
    Request request;
    Slot* slot;
  };

  // Returns a free slot in its last user's state. The slot's address stays the same until
  // release().
  Taken take() {
    if (free_.empty()) {
      entries_.emplace_back();
      free_.reserve(entries_.size());
      free_.push_back(static_cast<std::uint32_t>(entries_.size() - 1));
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Entry& entry = entries_[index];
    entry.busy = true;
    return {{index, entry.generation}, &entry.slot};
  }

  // Returns the slot of the request, or null if the request is not in flight here.
  Slot* find(const Request& request) {
    if (request.slot >= entries_.size()) return nullptr;
    Entry& entry = entries_[request.slot];
    return entry.busy && entry.generation == request.generation ? &entry.slot : nullptr;
  }

  // REQUIRES: find(request) != nullptr. Resets `request` to inactive.
  void release(Request& request) {
    assert(find(request) != nullptr);
    Entry& entry = entries_[request.slot];
    entry.busy = false;
    ++entry.generation;
    free_.push_back(request.slot);
    request = Request{};
  }

  std::size_t in_flight() const { return entries_.size() - free_.size(); }

  template <class Function>
  void for_each_in_flight(Function function) {
    for (Entry& entry : entries_) {
      if (entry.busy) function(entry.slot);
    }
  }

 private:
  struct Entry {
    Slot slot{};
    std::uint32_t generation = 0;
    bool busy = false;
  };
  std::deque<Entry> entries_;
  std::vector<std::uint32_t> free_;
};

// Returns the status for test() of a request that is not in flight on this communicator.
inline Status stale_request() {
  return failed_precondition(
      "test: expected a request in flight on this communicator, found one that is complete or of "
      "another communicator; test a request until test() returns done, on the communicator that "
      "started the request");
}

}  // namespace cox::transport
