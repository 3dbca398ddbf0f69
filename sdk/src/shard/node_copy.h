// NodeCopy is memory that the ranks of a node hold once. Each rank owns one slice and is its only
// writer, except for gradients, which ranks write in turns. All ranks read everything.
// divide_storages() lays out storages one behind another and divides them into slices in the same
// order, so a rank's slice is one stretch of memory. divide_storages() is pure. Training thread
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::detail {

// Elements of a storage: `begin` up to, but without, `end`.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool is_empty() const { return begin == end; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Returns the intersection of two ranges; empty if they do not overlap.
ElementRange common_part(const ElementRange& a, const ElementRange& b);

struct StorageShape {
  std::int64_t elements = 0;
  std::int64_t element_bytes = 0;

  std::int64_t bytes() const { return elements * element_bytes; }
};

// StoragePlace is the position of one storage in the node's memory, and the elements of each rank.
struct StoragePlace {
  std::int64_t offset_bytes = 0;
  std::vector<ElementRange> slices;  // by rank
};

struct SliceLayout {
  std::vector<StoragePlace> storages;
  std::int64_t bytes = 0;  // of all storages, padding included
};

// Storages begin at multiples of a cache line, in bytes.
inline constexpr std::int64_t kStorageAlignment = 64;

// Returns the offset of the next storage, if the previous one ends at `bytes`.
inline std::int64_t to_line(std::int64_t bytes) {
  return (bytes + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
}

// Divides the bytes of the storages in proportion to `weights`, one per rank. Borders within a
// storage lie at multiples of `grain` elements. REQUIRES: weights are not negative, and not all 0.
SliceLayout divide_storages(const std::vector<StorageShape>& storages,
                            const std::vector<double>& weights, std::int64_t grain);

// NodeCopy has two mappings of the same pages on each rank: a read-only one of everything, and a
// writable one of the rank's slice. A write through the read-only mapping is a segmentation fault
// (fault_names.h). Copies of a NodeCopy share the mappings, which live as long as one copy does.
class NodeCopy {
 public:
  NodeCopy() = default;
  // Returns zeroed memory, shared by all ranks of `node`. Collective; waits for other ranks, so
  // call it at start-up only. Returns resource_exhausted on every rank if one of them cannot map
  // the memory.
  static Result<NodeCopy> create(transport::Communicator& node, std::size_t bytes);

  // Leaves only these bytes writable, rounded outwards to whole pages, so neighbours may share a
  // page. Excludes the memory from core dumps, and the writable mapping from children of fork(), if
  // the kernel can. Returns resource_exhausted if the system refuses the protection.
  Status keep_writable(std::size_t begin_byte, std::size_t end_byte);

  const std::byte* readable() const { return readable_.get(); }
  // REQUIRES: the caller writes to its own slice, or takes turns with the others (GradientTurns).
  std::byte* writable() const { return segment_.bytes().data(); }
  std::size_t bytes() const { return segment_.bytes().size(); }
  // Returns the owner of the memory at readable().
  std::shared_ptr<std::byte> reading_owner() const { return readable_; }
  // Returns the owner of the memory at writable().
  transport::SharedSegment segment() const { return segment_; }

 private:
  transport::SharedSegment segment_;
  std::shared_ptr<std::byte> readable_;
};

}  // namespace cox::detail
