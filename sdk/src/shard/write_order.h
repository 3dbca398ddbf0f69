// WriteOrder gives the writes of a node's ranks to shared memory one common order. Writes have
// numbers that are equal on all ranks. Write n waits until all ranks have arrived at n, so no rank
// still reads the values before it. A reader waits until the other ranks have completed as many
// writes as this rank has made. Readers compare counts and do not meet, so one rank can read alone
// (an evaluation on one rank).
//
// Each number has a hash of the write, so that ranks that diverge are detected. The counts lie in
// memory shared by the ranks. Training thread only; waits with the given function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_set>

#include "coordinator/transport/shared/segment.h"

namespace cox::detail {

class WriteOrder {
 public:
  // Returns when `is_over` returns true. Throws if a rank that is waited for has left.
  using Wait = std::function<void(const std::function<bool()>& is_over)>;

  static std::size_t bytes_needed(std::int32_t ranks);
  // `memory` is zeroed, shared by all ranks, and has bytes_needed() bytes or more. `rank` is the
  // rank within the node.
  WriteOrder(transport::SharedSegment memory, std::int32_t rank, std::int32_t ranks, Wait wait);

  // Arrives at the next write and waits for all ranks to arrive there. Returns the lowest rank
  // whose write has another `what`, or nothing if all agree. `what` identifies the write: equal on
  // all ranks for the same one. REQUIRES: the caller calls complete() afterwards, also after an
  // error.
  std::optional<std::int32_t> arrive(std::uint64_t what);
  void complete();

  // Returns whether a rank has arrived at a write with a larger number.
  bool has_any_arrived_behind(std::uint64_t number) const;

  // Waits until the other ranks have completed as many writes as this rank has made.
  void wait_for_completed();
  // Returns whether this rank has seen all others complete as many writes. wait_for_completed()
  // then returns at once.
  bool is_up_to_date() const { return completed_seen_ == number_; }

  std::uint64_t number() const { return number_; }  // number of this rank's newest write; 0 = none

 private:
  struct Line;
  Line& line(std::int32_t rank) const;
  bool have_all_completed() const;

  transport::SharedSegment memory_;
  const std::int32_t rank_;
  const std::int32_t ranks_;
  const Wait wait_;
  std::uint64_t number_ = 0;
  std::uint64_t completed_seen_ = 0;  // writes that all ranks are known to have completed
};

// UpdateSequences learns the order in which a loop writes its parameters. In a known order, one
// wait at the end of an update is enough for code that reads parameters past the operator stream
// (raw pointers, torch::save). In an unknown order, every write waits. A plain value.
class UpdateSequences {
 public:
  // Marks the start of an update. The writes since the last call were one complete update.
  void begin();
  // Records a write. Returns whether to wait for the other ranks after it: at the end of a known
  // update, and at every write of an unknown one.
  bool note(std::uint64_t what);

  std::uint64_t new_sequences() const { return new_sequences_; }  // updates in a new order

 private:
  // Limit of known beginnings; above it all are forgotten. A loop that changes its order each time
  // stays correct, but waits at every write.
  static constexpr std::size_t kMost = 1 << 16;

  std::uint64_t written_ = 0;  // hash of the writes since begin(); 0 = none
  bool departed_ = false;
  std::unordered_set<std::uint64_t> beginnings_;  // hashes of all beginnings of known updates
  std::unordered_set<std::uint64_t> ends_;
  std::uint64_t new_sequences_ = 0;
};

}  // namespace cox::detail
