// BlockArena gives out memory for small objects that all end before it is cleared. Clearing keeps
// the memory for the next ones. A plain value; one thread at a time uses it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace cox::detail {

class BlockArena {
 public:
  // Returns memory aligned for any object. REQUIRES: 0 < bytes <= kChunkBytes.
  void* take(std::size_t bytes) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (chunk_ == chunks_.size() || used_ + rounded > kChunkBytes) next_chunk();
    void* const taken = chunks_[chunk_].get() + used_;
    used_ += rounded;
    return taken;
  }
  void clear() {
    chunk_ = 0;
    used_ = 0;
  }

  static constexpr std::size_t kChunkBytes = 4096;

 private:
  static constexpr std::size_t kAlignment = alignof(std::max_align_t);

  void next_chunk() {
    if (chunk_ < chunks_.size()) ++chunk_;
    if (chunk_ == chunks_.size()) chunks_.push_back(std::make_unique<std::byte[]>(kChunkBytes));
    used_ = 0;
  }

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t chunk_ = 0;  // that is given out of
  std::size_t used_ = 0;   // of that one
};

}  // namespace cox::detail
