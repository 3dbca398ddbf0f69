// A communicator that passes every call on and counts the bytes sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "coordinator/transport/communicator.h"

namespace cox::bench {

enum class Sent : std::uint8_t { gather, broadcast, reduce, other };

// Sizes of operations started by ranks, by kind. Any thread.
class SentBytes {
 public:
  void add(Sent kind, std::size_t bytes);
  // Returns the most frequent size of a kind's operations; 0 = none.
  std::size_t most_common(Sent kind) const;
  // Returns how many operations of a kind had this size.
  std::uint64_t count(Sent kind, std::size_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<Sent, std::map<std::size_t, std::uint64_t>> counts_;
};

// Wraps `communicator`. `sent` counts a rank's own part of each operation of the wrapper and of all
// communicators made from the wrapper. `sent` must outlive all of them.
std::unique_ptr<transport::Communicator> counted(
    std::unique_ptr<transport::Communicator> communicator, SentBytes& sent);

}  // namespace cox::bench
