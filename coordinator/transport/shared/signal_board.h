// SignalBoard: one slot per rank in memory that the ranks of a node share. A rank's training thread
// posts its report there; one reader, the coordinator's thread, sleeps until as many fresh reports
// as it expects have come, and takes them. Slots never hold a torn report: a slot belongs to its
// writer until `posted` is raised and to the reader until `consumed` follows, so bytes are only
// ever touched by the side that owns them.
//
// No wake-up is missed: a poster first counts its report (arrivals) and then looks whether someone
// sleeps (sleeper); the reader first says that it sleeps and then looks at the count. All four are
// sequentially consistent, so at least one of them sees the other: either the reader does not go to
// sleep, or the poster wakes it. The wake-up count changes before the wake, and the kernel compares
// it when the reader goes to sleep, so a wake just before that is not lost either.
//
// Stray writes of another process cost reports, never more: sizes and places are the view's own,
// receivers check signals, evidence has a check here, and collect() brings counts that no longer
// fit the slots back to them.
//
// The board is a view: it owns nothing, its memory must outlive it, copies are equal views.
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

// BoardShape says how much a board holds. Equal on all ranks of the node.
struct BoardShape {
  std::int32_t ranks = 0;    // slots
  std::uint32_t blocks = 0;  // BlockEvidence per slot, at most
  friend bool operator==(const BoardShape&, const BoardShape&) = default;
};

// CollectedSignals are fresh reports, in the order of their slots.
struct CollectedSignals {
  std::vector<RankSignal> signals;      // as posted, unchecked
  std::vector<BlockEvidence> evidence;  // of all of them, merged in slot order; `blocks` of them
  std::vector<BlockEvidence> given{};   // scratch: of the last report
};

enum class BoardWake : std::uint8_t { complete, notified, timed_out };

class SignalBoard {
 public:
  static std::size_t bytes_needed(const BoardShape& shape);
  // Makes an empty board. REQUIRES: zeroed memory, aligned to 64 bytes. resource_exhausted when it
  // is too small, invalid_argument when the shape is out of range.
  static Result<SignalBoard> format(std::span<std::byte> memory, const BoardShape& shape);
  // Returns a view of a board made by format(), here or in another process, or data_loss when there
  // is none of this version and shape.
  static Result<SignalBoard> attach(std::span<std::byte> memory, const BoardShape& shape);

  const BoardShape& shape() const { return shape_; }

  // Writer's side; each slot has one writer thread. `slot` is 0 .. ranks - 1.

  // Posts a report. Returns false, and does nothing, while the last report has not been taken.
  // Evidence beyond the shape's blocks is left out. Never blocks, and makes a system call only for
  // the report that completes what a sleeping reader expects.
  [[nodiscard]] bool post(std::int32_t slot, const RankSignal& signal,
                          std::span<const BlockEvidence> evidence);
  // Returns whether the last report was taken: the rank's control round is closed.
  bool consumed(std::int32_t slot) const;

  // Ends a wait() early, e.g. because other work has come. Any thread.
  void notify();

  // Reader's side; one thread.

  // Sleeps until `expected` fresh reports lie here, notify() is called, or `timeout` is over.
  // Returns at once if they lie here already. A notify() that came while nobody waited ends the
  // next wait().
  BoardWake wait(std::int32_t expected, std::chrono::nanoseconds timeout);
  // Waits like wait() for at most `polls` intervals, but looks by itself after each, so that no
  // post() makes a system call.
  BoardWake wait_polling(std::int32_t expected, std::chrono::nanoseconds interval, int polls);
  // Takes the fresh reports, which lets their writers post again.
  CollectedSignals collect();
  // Does the same into memory that is used again: allocates nothing once it has held as many
  // signals.
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
