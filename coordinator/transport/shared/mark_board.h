// MarkBoard: what each rank of a node is doing, in memory that they share: one mark of two cache
// lines per rank, moved by its training thread alone, read by anybody at any time: by the
// coordinator's thread, by a rank that waits, by the leader's courier to other nodes. A rank that
// stands still, or whose process is stopped, thereby says where.
//
// A mark is written beside the one before and then made the newest, so no reader ever sees one that
// is half moved, not even of a rank that was stopped while it moved it. Moving a mark is a few
// stores: no system call, no allocation, nothing that waits. Times are those of the node's steady
// clock, which its processes share.
//
// A board is a view that owns nothing; its memory must outlive it and its writers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/core/stall.h"
#include "coordinator/core/status.h"

namespace cox::transport {

using MarkClock = std::chrono::steady_clock;

// A process is known by its number and the space of numbers that it lives in, so that a rank in
// another container is never mistaken for a stranger.
struct ProcessId {
  std::int32_t number = 0;  // 0 = not known
  std::uint64_t space = 0;  // inode of the PID namespace; 0 = not known
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();

// Unknown where the process lives in another space of numbers, or nobody can say.
ProcessState state_of(const ProcessId& process);

// Reads the line of /proc/PID/stat: the letter behind the name, which may hold any characters.
// Pure.
ProcessState parse_process_state(std::string_view stat_line);

// One rank's end of a board; a default one writes nowhere. Training thread.
class MarkWriter {
 public:
  MarkWriter() = default;

  // Says whose process this is.
  void sign(const ProcessId& process);
  // The rank now does this; `step` is the newest that it began.
  void enter(Activity activity, StepId step, MarkClock::time_point now);
  // All rounds before `round` are complete here.
  void begin_round(RoundId round, MarkClock::time_point now);
  // The thread lives, and does what it did.
  void beat(MarkClock::time_point now);
  // Says that this process has told why it ends before its loop does, or is about to. Any thread.
  void explain_end();

  Activity activity() const { return now_.activity; }
  RoundId round() const { return now_.round; }

 private:
  friend class MarkBoard;
  struct Slot;
  struct State {
    Activity activity = Activity::outside;
    StepId step{};
    RoundId round{};
    MarkClock::time_point since{};
    MarkClock::time_point round_since{};
  };
  explicit MarkWriter(Slot* slot) : slot_(slot) {}
  void write(MarkClock::time_point now);

  Slot* slot_ = nullptr;
  State now_;
};

class MarkBoard {
 public:
  static std::size_t bytes_needed(std::size_t ranks);
  // Makes a board without marks. REQUIRES: zeroed memory, aligned to 64 bytes.
  static Result<MarkBoard> format(std::span<std::byte> memory, std::size_t ranks);
  // A view of a board made by format(), here or in another process; data_loss when there is none.
  static Result<MarkBoard> attach(std::span<std::byte> memory, std::size_t ranks);

  std::size_t ranks() const { return ranks_; }
  // REQUIRES: slot < ranks(); one writer a slot.
  MarkWriter writer(std::size_t slot) const;

  // Marks of other nodes' ranks that keep ranks waiting, as this node was told; a newer list
  // replaces the one before, and one that is some seconds old counts no more. One writer, the
  // node's courier.
  static constexpr std::size_t kMostTold = 8;
  void tell(std::span<const RankMark> culprits, MarkClock::time_point now) const;
  std::vector<RankMark> told(MarkClock::time_point now) const;

  enum class Look : std::uint8_t { marks, marks_and_processes };
  // Reads the mark of every slot, in their order; `rank` is left to the caller. A slot that nobody
  // has written reads as unknown. Asks the operating system as well where `look` says so.
  std::vector<RankMark> read(MarkClock::time_point now, Look look) const;
  // Reads the mark of one slot. With Look::marks, this and the two below call nothing, so that a
  // process that was forked may use them. REQUIRE: slot < ranks().
  RankMark read_slot(std::size_t slot, MarkClock::time_point now, Look look) const;
  ProcessId process(std::size_t slot) const;
  bool is_end_explained(std::size_t slot) const;

 private:
  struct Header;
  std::span<std::byte> told_memory() const;
  explicit MarkBoard(std::byte* memory, std::size_t ranks);
  MarkWriter::Slot& slot_at(std::size_t slot) const;

  std::byte* memory_;
  std::size_t ranks_;
};

}  // namespace cox::transport
