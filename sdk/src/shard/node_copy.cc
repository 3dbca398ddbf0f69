#include "sdk/src/shard/node_copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <numeric>
#include <utility>

#include "coordinator/io/limits.h"

namespace cox::detail {
namespace {

using transport::kPage;

// Returns the border within the storage, in elements, that is nearest to `byte`. Bytes are counted
// over all storages without padding.
std::int64_t border_near(double byte, double first_byte, const StorageShape& shape,
                         std::int64_t grain) {
  const double grain_bytes = static_cast<double>(grain * shape.element_bytes);
  const auto grains = std::llround((byte - first_byte) / grain_bytes);
  return std::clamp<std::int64_t>(grains * grain, 0, shape.elements);
}

Status refused(const char* step, std::size_t bytes) {
  return resource_exhausted(
      "shard.mode: expected a mapping of ", bytes, " bytes of shared memory, found none (", step,
      ": ", io::errno_text(errno), "); raise the limit of address space (ulimit -v)");
}

// mremap() with an old size of 0 makes a second mapping of the same shared pages (mremap(2)).
Result<std::shared_ptr<std::byte>> map_again(std::byte* memory, std::size_t bytes) {
  void* again = mremap(memory, 0, bytes, MREMAP_MAYMOVE);
  if (again == MAP_FAILED) return refused("mremap", bytes);
  std::shared_ptr<std::byte> owned(static_cast<std::byte*>(again),
                                   [bytes](std::byte* p) { munmap(p, bytes); });
  if (mprotect(again, bytes, PROT_READ) != 0) return refused("mprotect", bytes);
  return owned;
}

}  // namespace

ElementRange common_part(const ElementRange& a, const ElementRange& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

SliceLayout divide_storages(const std::vector<StorageShape>& storages,
                            const std::vector<double>& weights, std::int64_t grain) {
  double total_bytes = 0;
  for (const StorageShape& each : storages) total_bytes += static_cast<double>(each.bytes());
  const double total_weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  SliceLayout layout;
  double first_byte = 0;
  for (const StorageShape& shape : storages) {
    StoragePlace place{layout.bytes, {}};
    double weight = 0;
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < weights.size(); ++rank) {
      weight += weights[rank];
      const bool is_last = rank + 1 == weights.size();
      const double border_byte = total_bytes * (weight / total_weight);
      const std::int64_t end =
          is_last ? shape.elements
                  : std::max(begin, border_near(border_byte, first_byte, shape, grain));
      place.slices.push_back({begin, end});
      begin = end;
    }
    layout.storages.push_back(std::move(place));
    layout.bytes = to_line(layout.bytes + shape.bytes());
    first_byte += static_cast<double>(shape.bytes());
  }
  return layout;
}

Result<NodeCopy> NodeCopy::create(transport::Communicator& node, std::size_t bytes) {
  const std::size_t pages = transport::round_up(bytes == 0 ? 1 : bytes, kPage);
  auto segment = node.shared_segment(pages);
  if (!segment.ok()) return segment.status();
  auto readable = map_again(segment->bytes().data(), pages);
  if (!readable.ok()) return readable.status();
  NodeCopy copy;
  copy.segment_ = *std::move(segment);
  copy.readable_ = *std::move(readable);
  return copy;
}

Status NodeCopy::keep_writable(std::size_t begin_byte, std::size_t end_byte) {
  const std::size_t begin = begin_byte / kPage * kPage;
  const std::size_t end = begin_byte == end_byte ? begin : transport::round_up(end_byte, kPage);
  std::byte* memory = writable();
  if (begin > 0 && mprotect(memory, begin, PROT_NONE) != 0) return refused("mprotect", begin);
  if (end < bytes() && mprotect(memory + end, bytes() - end, PROT_NONE) != 0)
    return refused("mprotect", bytes() - end);
  // Errors are ignored: a kernel without these flags dumps more, and children inherit more.
  static_cast<void>(madvise(memory, bytes(), MADV_DONTFORK));
  static_cast<void>(madvise(memory, bytes(), MADV_DONTDUMP));
  static_cast<void>(madvise(readable_.get(), bytes(), MADV_DONTDUMP));
  return ok_status();
}

}  // namespace cox::detail
