// SignalBoard: one slot per rank in memory shared by the ranks of a node. A rank's training thread
// posts its report there. One reader, the coordinator's thread, sleeps until the expected number of
// fresh reports has arrived, and takes them. A board is a view that owns nothing; the memory must
// outlive the board. Copies are equal views.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/status.h"

namespace cox::transport {

// BoardShape is the capacity of a board. Equal on all ranks of the node.
struct BoardShape {
  std::int32_t ranks = 0;    // slots
  std::uint32_t blocks = 0;  // BlockEvidence per slot, at most
  friend bool operator==(const BoardShape&, const BoardShape&) = default;
};

// CollectedSignals are fresh reports, in the order of their slots.
struct CollectedSignals {
  std::vector<RankSignal> signals;      // as posted, unchecked
  std::vector<BlockEvidence> evidence;  // all reports merged in slot order; `blocks` entries
  std::vector<BlockEvidence> given{};   // scratch: evidence of the last report
};

enum class BoardWake : std::uint8_t { complete, notified, timed_out };

// A slot belongs to its writer until `posted` is raised, and to the reader until `consumed`
// follows. Only the owner touches the bytes, so a report is never torn.
//
// No wake-up is missed. A poster counts its report (arrivals) and then reads `sleeper`. The reader
// sets `sleeper` and then reads the count. All four accesses are sequentially consistent, so at
// least one side sees the other: either the reader stays awake, or the poster wakes the reader. The
// wake-up count changes before the wake, and the kernel compares the count when the reader goes to
// sleep. So a wake just before the sleep is not lost either.
//
// Stray writes of another process cost reports, never more. The view has its own sizes and offsets,
// receivers check signals, and each slot's evidence has a check. collect() corrects counts that no
// longer match the slots.
class SignalBoard {
 public:
  static std::size_t bytes_needed(const BoardShape& shape);
  // Formats an empty board. REQUIRES: zeroed memory, aligned to 64 bytes. Returns
  // resource_exhausted when the memory is too small, invalid_argument when the shape is out of
  // range.
  static Result<SignalBoard> format(std::span<std::byte> memory, const BoardShape& shape);
  // Returns a view of a board made by format(), here or in another process. Returns data_loss when
  // there is no board of this version and shape.
  static Result<SignalBoard> attach(std::span<std::byte> memory, const BoardShape& shape);

  const BoardShape& shape() const { return shape_; }

  // Writer's side; each slot has one writer thread. `slot` is 0 .. ranks - 1.

  // Posts a report. Returns false and does nothing while the reader has not taken the last report.
  // Drops evidence beyond the shape's blocks. Never blocks. Makes a system call only for the report
  // that completes a sleeping reader's expected number.
  [[nodiscard]] bool post(std::int32_t slot, const RankSignal& signal,
                          std::span<const BlockEvidence> evidence);
  // Returns whether the reader took the last report, which closes the rank's control round.
  bool consumed(std::int32_t slot) const;

  // Ends a wait() early, for example because of other work. Any thread.
  void notify();

  // Reader's side; one thread.

  // Sleeps until `expected` fresh reports have arrived, notify() is called, or `timeout` is over.
  // Returns at once if the reports have already arrived. A notify() without a waiter ends the next
  // wait().
  BoardWake wait(std::int32_t expected, std::chrono::nanoseconds timeout);
  // Waits like wait() for at most `polls` intervals, but polls after each interval, so that no
  // post() makes a system call.
  BoardWake wait_polling(std::int32_t expected, std::chrono::nanoseconds interval, int polls);
  // Takes the fresh reports and lets their writers post again.
  CollectedSignals collect();
  // Does the same into reused memory. Allocates nothing after the largest number of signals was
  // held once.
  void collect(CollectedSignals& into);

 private:
  struct Header;
  struct Slot;
  SignalBoard(std::byte* memory, const BoardShape& shape);
  Slot& slot_at(std::int32_t slot) const;
  std::int32_t fresh() const;
  void take_evidence(Slot& slot, CollectedSignals& into) const;
  void settle_counts(std::int32_t counted, std::int32_t taken);
  std::optional<BoardWake> reason_to_wake(std::int32_t expected);

  std::byte* memory_;
  Header* header_;
  BoardShape shape_;
};

}  // namespace cox::transport
