// TierSpace: which bytes of a tier's file are in use. Hands out the first gap that is wide enough,
// in whole pages, so the same requests in the same order give the same places. Plain value, no
// lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace cox::detail {

class TierSpace {
 public:
  static constexpr std::int64_t kPage = 4096;

  // `capacity`: bytes, rounded down to pages.
  explicit TierSpace(std::int64_t capacity);

  // The offset of `bytes` that are now in use, or nothing when no gap is wide enough. Requires:
  // bytes > 0.
  std::optional<std::int64_t> take(std::int64_t bytes);
  // Requires: take(bytes) returned `offset`, and it was not given back since.
  void give_back(std::int64_t offset, std::int64_t bytes);

  std::int64_t used() const { return used_; }

 private:
  std::map<std::int64_t, std::int64_t> gaps_;  // offset to width, no two adjacent
  std::int64_t used_ = 0;                      // in whole pages
};

}  // namespace cox::detail
