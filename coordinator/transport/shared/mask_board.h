// MaskBoard: the newest set of plan frames, written by the coordinator's thread, read by the
// training threads of a node from shared memory. Reading costs one load while nothing is new and
// never blocks. A set replaces the one before, also for readers that have not seen that one.
//
// The set lies between two readings of one sequence number (odd while it is being written). Its
// words are atomics stored with release and loaded with acquire: a reader that saw any word of a
// newer set also sees the newer number afterwards and throws the copy away. So no torn set is ever
// returned, on any processor.
//
// Stray writes of another process give frames that nobody wrote, or none: a view reads the capacity
// once, and what it reads later stays within that. Receivers check frames; the writer's next set
// mends the board.
//
// A board is a view that owns nothing; its memory must outlive it. One writer; a MaskReader per
// reading thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::transport {

class MaskBoard {
 public:
  // Returns the size of a board for sets of `capacity_bytes`; a frame takes 4 bytes more, rounded
  // up to 8.
  static std::size_t bytes_needed(std::size_t capacity_bytes);
  // Makes an empty board. REQUIRES: zeroed memory, aligned to 64 bytes.
  static Result<MaskBoard> format(std::span<std::byte> memory, std::size_t capacity_bytes);
  // Returns a view of a board made by format(), here or in another process, or data_loss when there
  // is none.
  static Result<MaskBoard> attach(std::span<std::byte> memory);

  // Replaces the set on the board; for the writer. Returns invalid_argument when the frames do not
  // fit; the board then stays as it is.
  Status publish(std::span<const std::span<const std::byte>> frames);

 private:
  friend class MaskReader;
  struct Header;
  MaskBoard(std::byte* memory, std::size_t capacity_words);

  Header* header_;
  std::size_t capacity_words_;  // of the memory as it was checked
};

// MaskReader is one thread's reading of a board.
class MaskReader {
 public:
  explicit MaskReader(MaskBoard board) : board_(board) {}

  // Returns true when a set newer than the last one was copied to frames(). It also returns false
  // when the writer kept changing the set; try again later.
  [[nodiscard]] bool poll();
  // Returns the last set that poll() copied. It is valid until poll() returns true again.
  std::span<const std::span<const std::byte>> frames() const { return frames_; }
  // Returns how many sets were published up to the one in frames(). A rise by more than 1 shows
  // that some were missed.
  std::uint64_t sets() const { return seen_ / 2; }

 private:
  bool copy(std::uint64_t sequence);
  void split_copy();

  MaskBoard board_;
  std::uint64_t seen_ = 0;
  std::size_t words_ = 0;              // of trying_
  std::vector<std::uint64_t> copy_;    // what frames_ points to
  std::vector<std::uint64_t> trying_;  // a copy that may turn out torn
  std::vector<std::span<const std::byte>> frames_;
};

}  // namespace cox::transport
