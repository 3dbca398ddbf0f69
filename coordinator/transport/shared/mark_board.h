// MarkBoard: the current activity of each rank of a node, in memory shared by the ranks. Each rank
// has one mark, written by its training thread alone. Any process may read a mark at any time: the
// coordinator's thread, a waiting rank, or the leader's courier to other nodes. So a rank that
// stands still, or whose process is stopped, still shows its position. A board is a view that owns
// nothing; the memory must outlive the board and its writers.
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

// ProcessId is a process's number and the PID namespace of the number. A rank in another container
// is thus never mistaken for a local process.
struct ProcessId {
  std::int32_t number = 0;  // 0 = not known
  std::uint64_t space = 0;  // inode of the PID namespace; 0 = not known
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();

// Returns the state of the process. Unknown if the process lives in another PID namespace or its
// state cannot be read.
ProcessState state_of(const ProcessId& process);

// Parses the line of /proc/PID/stat: the letter behind the name. The name may hold any characters.
// Pure.
ProcessState parse_process_state(std::string_view stat_line);

// MarkWriter writes one rank's mark. A default-constructed writer writes nowhere. Training thread.
class MarkWriter {
 public:
  MarkWriter() = default;

  // Stores this rank's process.
  void sign(const ProcessId& process);
  // Records the rank's new activity. `step` is the newest step that the rank began.
  void enter(Activity activity, StepId step, MarkClock::time_point now);
  // Records that all rounds before `round` are complete here.
  void begin_round(RoundId round, MarkClock::time_point now);
  // Records that the thread is alive, with its activity unchanged.
  void beat(MarkClock::time_point now);
  // Records that this process has reported, or is about to report, why it ends before its loop
  // does. Any thread.
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

// A mark takes two cache lines. A new mark is written beside the old one and then becomes the
// newest. So no reader sees half a mark, even of a rank stopped during the write. A write is a few
// stores: no system call, no allocation, no wait. Times are those of the node's steady clock, which
// the processes of the node share.
class MarkBoard {
 public:
  static std::size_t bytes_needed(std::size_t ranks);
  // Makes a board without marks. REQUIRES: zeroed memory, aligned to 64 bytes.
  static Result<MarkBoard> format(std::span<std::byte> memory, std::size_t ranks);
  // Returns a view of a board made by format(), here or in another process. Returns data_loss when
  // there is none.
  static Result<MarkBoard> attach(std::span<std::byte> memory, std::size_t ranks);

  std::size_t ranks() const { return ranks_; }
  // Returns the writer of a slot. REQUIRES: slot < ranks(); one writer a slot.
  MarkWriter writer(std::size_t slot) const;

  // Stores and returns marks of other nodes' ranks that keep ranks waiting, as received from those
  // nodes. A newer list replaces the old one. A list older than some seconds is ignored. One
  // writer, the node's courier.
  static constexpr std::size_t kMostTold = 8;
  void tell(std::span<const RankMark> culprits, MarkClock::time_point now) const;
  std::vector<RankMark> told(MarkClock::time_point now) const;

  enum class Look : std::uint8_t { marks, marks_and_processes };
  // Reads the mark of every slot, in slot order. `rank` is left to the caller. A slot without a
  // mark reads as unknown. Also asks the operating system for the process's state if `look`
  // requests it.
  std::vector<RankMark> read(MarkClock::time_point now, Look look) const;
  // Reads the mark of one slot. With Look::marks, this function and the two below make no system
  // call, so a forked process may use them. REQUIRES: slot < ranks().
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
