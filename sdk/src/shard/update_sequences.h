// UpdateSequences learns in which order a loop writes to its parameters, so that one wait at the
// end of an update is enough for code that reads parameters past the operator stream (raw pointers,
// torch::save). Until an order is known, every write waits. A plain value.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "coordinator/core/hash.h"

namespace cox::detail {

class UpdateSequences {
 public:
  // An update may begin: what was written since the last call was one whole update.
  void begin();
  // Notes a write. Returns whether the other ranks are to be waited for behind it: it ends a known
  // update, or belongs to none that is known.
  bool note(std::uint64_t what);

  std::uint64_t departures() const { return departures_; }  // updates in an order not seen before

 private:
  // A loop whose order is another one each time stays right and waits at every write.
  static constexpr std::size_t kMost = 1 << 16;

  std::uint64_t written_ = 0;  // hash of the writes since begin(); 0 = none
  bool departed_ = false;
  std::unordered_set<std::uint64_t> beginnings_;  // hashes of all beginnings of known updates
  std::unordered_set<std::uint64_t> ends_;
  std::uint64_t departures_ = 0;
};

}  // namespace cox::detail
