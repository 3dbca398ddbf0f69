// SharedSegment: memory that all ranks of a node see, owned by value; unmapped when destroyed, and
// its name is gone from the file system as soon as all ranks have mapped it, so a crash leaves
// nothing behind. Contents are raw bytes; users put atomics there (mailbox.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace cox::transport {

class SharedSegment {
 public:
  SharedSegment() = default;
  // `owner` keeps the mapping alive; it may be shared by ranks that are threads.
  SharedSegment(std::span<std::byte> bytes, std::shared_ptr<void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<void> owner_;
};

// Zeroed memory of this process alone, aligned to a cache line, for ranks that are threads.
SharedSegment heap_segment(std::size_t bytes);

}  // namespace cox::transport
