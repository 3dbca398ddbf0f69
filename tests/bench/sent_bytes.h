// Counts what is really sent: a communicator that passes every call on and writes down the sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "coordinator/transport/communicator.h"

namespace cox::bench {

enum class Sent : std::uint8_t { gather, broadcast, reduce, other };

// Sizes of the operations that ranks have started, by kind. Any thread.
class SentBytes {
 public:
  void add(Sent kind, std::size_t bytes);
  // Returns the size that most operations of a kind had; 0 = there was none.
  std::size_t most_common(Sent kind) const;
  // Returns how many operations of a kind had that size.
  std::uint64_t count(Sent kind, std::size_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<Sent, std::map<std::size_t, std::uint64_t>> counts_;
};

// Returns `communicator` with what it and all that come from it send counted in `sent`, a rank's
// own part of each operation. `sent` must outlive them.
std::unique_ptr<transport::Communicator> counted(
    std::unique_ptr<transport::Communicator> communicator, SentBytes& sent);

}  // namespace cox::bench
