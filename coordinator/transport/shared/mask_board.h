// MaskBoard: the newest set of plan frames in a node's shared memory. The coordinator's thread
// writes the set; training threads read it. A read costs one load while nothing is new, and never
// blocks. A new set replaces the old one, even for readers that have not read the old one. A board
// is a view that owns nothing; the memory must outlive the board. One writer; one MaskReader per
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
  // A reader copies the set between two reads of a sequence number, which is odd during a write.
  // The words are atomics, stored with release and loaded with acquire. A reader that loaded any
  // word of a newer set also loads the newer number afterwards, and discards its copy. So poll()
  // never returns a torn set, on any processor.
  //
  // Stray writes of another process yield unknown frames or none. A view reads the capacity once
  // and stays within it. Receivers check frames, and the writer's next set repairs the board.

  // Returns the size of a board for sets of `capacity_bytes`. A frame takes 4 bytes more, rounded
  // up to 8.
  static std::size_t bytes_needed(std::size_t capacity_bytes);
  // Makes an empty board. REQUIRES: zeroed memory, aligned to 64 bytes.
  static Result<MaskBoard> format(std::span<std::byte> memory, std::size_t capacity_bytes);
  // Returns a view of a board made by format(), here or in another process. Returns data_loss when
  // there is none.
  static Result<MaskBoard> attach(std::span<std::byte> memory);

  // Replaces the set on the board; for the writer only. Returns invalid_argument when the frames do
  // not fit; the board then stays unchanged.
  Status publish(std::span<const std::span<const std::byte>> frames);

 private:
  friend class MaskReader;
  struct Header;
  MaskBoard(std::byte* memory, std::size_t capacity_words);

  Header* header_;
  std::size_t capacity_words_;  // fits the memory: checked by format() or attach()
};

// MaskReader is one thread's reader of a board.
class MaskReader {
 public:
  explicit MaskReader(MaskBoard board) : board_(board) {}

  // Returns true when a newer set was copied to frames(). Returns false if there is no newer set,
  // or if the writer kept changing the set; poll again later.
  [[nodiscard]] bool poll();
  // Returns the last set that poll() copied. Valid until poll() returns true again.
  std::span<const std::span<const std::byte>> frames() const { return frames_; }
  // Returns the number of sets published up to the one in frames(). A rise by more than 1 means
  // missed sets.
  std::uint64_t sets() const { return seen_ / 2; }

 private:
  bool copy(std::uint64_t sequence);
  void split_copy();

  MaskBoard board_;
  std::uint64_t seen_ = 0;
  std::size_t words_ = 0;              // used in trying_
  std::vector<std::uint64_t> copy_;    // the bytes behind frames_
  std::vector<std::uint64_t> trying_;  // a copy that may be torn
  std::vector<std::span<const std::byte>> frames_;
};

}  // namespace cox::transport
