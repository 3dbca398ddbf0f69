// WriteOrder puts the writes of the ranks of a node to what they hold once into one order. Writes
// are numbered, the same on all ranks. Write n waits until all ranks have arrived at n: none of
// them reads the values before it any more. A reader waits until the others have completed as many
// writes as it did. Counts are compared, not meetings, so a rank that reads alone (an evaluation on
// one rank) waits for nobody who is not there.
//
// Each number carries a hash of what is written, so that ranks that part are told. Counts lie in
// memory that the ranks share. Training thread; waits by the function that it is given.
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
  // Returns when `is_over` returns true; throws where a rank that is waited for has left.
  using Wait = std::function<void(const std::function<bool()>& is_over)>;

  static std::size_t bytes_needed(std::int32_t ranks);
  // `memory`: zeroed, of all ranks, at least bytes_needed(). `rank`: of this node.
  WriteOrder(transport::SharedSegment memory, std::int32_t rank, std::int32_t ranks, Wait wait);

  // Arrives at the next write and waits for all ranks to arrive there. Returns the lowest rank that
  // is about to write something else, nothing where all write the same. `what`: equal on all ranks
  // for the same write. The caller calls complete() afterwards, whatever happens.
  std::optional<std::int32_t> arrive(std::uint64_t what);
  void complete();

  // Returns whether a rank has arrived at a write behind that number.
  bool has_any_arrived_behind(std::uint64_t number) const;

  // Waits until the others have completed as many writes as this rank.
  void wait_for_completed();
  // Returns whether wait_for_completed() has nothing to wait for, as far as is known.
  bool is_up_to_date() const { return completed_seen_ == number_; }

  std::uint64_t number() const { return number_; }  // of this rank's newest write; 0 = none

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

// UpdateSequences learns in which order a loop writes to its parameters, so that one wait at the
// end of an update is enough for code that reads parameters past the operator stream (raw pointers,
// torch::save). Until an order is known, every write waits. A plain value.
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
