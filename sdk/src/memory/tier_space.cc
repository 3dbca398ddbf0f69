#include "sdk/src/memory/tier_space.h"

#include <iterator>

namespace cox::detail {
namespace {

std::int64_t in_pages(std::int64_t bytes) {
  return (bytes + TierSpace::kPage - 1) / TierSpace::kPage * TierSpace::kPage;
}

}  // namespace

TierSpace::TierSpace(std::int64_t capacity) {
  const std::int64_t whole = capacity / kPage * kPage;
  if (whole > 0) gaps_.emplace(0, whole);
}

std::optional<std::int64_t> TierSpace::take(std::int64_t bytes) {
  const std::int64_t width = in_pages(bytes);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < width) continue;
    const auto [offset, gap_width] = *gap;
    gaps_.erase(gap);
    if (gap_width > width) gaps_.emplace(offset + width, gap_width - width);
    used_ += width;
    return offset;
  }
  return std::nullopt;
}

void TierSpace::give_back(std::int64_t offset, std::int64_t bytes) {
  std::int64_t width = in_pages(bytes);
  used_ -= width;
  auto next = gaps_.lower_bound(offset);
  if (next != gaps_.end() && next->first == offset + width) {
    width += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += width;
      return;
    }
  }
  gaps_.emplace(offset, width);
}

}  // namespace cox::detail
