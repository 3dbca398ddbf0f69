// SharedSegment: memory shared by all ranks of a node, owned by value and unmapped when destroyed.
// The contents are raw bytes; SignalBoard, MaskBoard and bucket exchanges put atomics there.
// Immutable after construction. Copies share the mapping. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "coordinator/core/status.h"

namespace cox::transport {

// Boards in shared memory are laid out in cache lines.
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to = kLine) {
  return (bytes + to - 1) / to * to;
}

class SharedSegment {
 public:
  SharedSegment() = default;
  // `owner` keeps the mapping alive. Ranks that are threads may share an owner.
  SharedSegment(std::span<std::byte> bytes, std::shared_ptr<void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<void> owner_;
};

// Returns zeroed private memory, aligned to a cache line, for ranks that are threads.
SharedSegment heap_segment(std::size_t bytes);

// Returns zeroed memory shared with all processes that this one forks later.
Result<SharedSegment> inherited_segment(std::size_t bytes);

}  // namespace cox::transport
