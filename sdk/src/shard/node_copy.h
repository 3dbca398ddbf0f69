// Memory that the ranks of a node hold once, and how it is divided: each rank owns one part, its
// slice, and is the only one to write there. Storages lie one behind another, in their order, and
// the slices follow the same order, so that a rank's slice is one stretch of memory.
// divide_storages() is pure; a NodeCopy belongs to the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::detail {

// Elements of a storage from `begin` to before `end`.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool is_empty() const { return begin == end; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// Returns the elements that both ranges have.
ElementRange common_part(const ElementRange& a, const ElementRange& b);

struct StorageShape {
  std::int64_t elements = 0;
  std::int64_t element_bytes = 0;

  std::int64_t bytes() const { return elements * element_bytes; }
};

// The place of one storage in the memory of the node, and the elements that each rank owns.
struct StoragePlace {
  std::int64_t offset_bytes = 0;
  std::vector<ElementRange> slices;  // by rank
};

struct SliceLayout {
  std::vector<StoragePlace> storages;
  std::int64_t bytes = 0;  // of all
};

// Storages begin at multiples of a line of the cache.
inline constexpr std::int64_t kStorageAlignment = 64;

// Returns where the next storage begins, behind one that ends there.
inline std::int64_t to_line(std::int64_t bytes) {
  return (bytes + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
}

// Divides the bytes of the storages in proportion to `weights`, one a rank. Borders within a
// storage lie at multiples of `grain` elements. REQUIRES: weights are not negative, and not all 0.
SliceLayout divide_storages(const std::vector<StorageShape>& storages,
                            const std::vector<double>& weights, std::int64_t grain);

// NodeCopy is such memory. Each rank sees it twice: read-only as a whole, and writable where its
// own slice is. A write through the read-only mapping is a fault, which fault_names.h explains.
// Copies of the object share the mappings, which live as long as one of them.
class NodeCopy {
 public:
  NodeCopy() = default;
  // Returns zeroed memory of all ranks of `node`. Collective and waiting (start-up only).
  // resource_exhausted on every rank where one of them cannot have it.
  static Result<NodeCopy> create(transport::Communicator& node, std::size_t bytes);

  // Leaves only these bytes writable, rounded to whole pages: neighbours may share one. Core dumps
  // leave the memory out, and children of fork() do not have the writable mapping. Returns
  // resource_exhausted where the system refuses.
  Status keep_writable(std::size_t begin_byte, std::size_t end_byte);

  const std::byte* readable() const { return readable_.get(); }
  // REQUIRES: the caller writes to its own slice only.
  std::byte* writable() const { return segment_.bytes().data(); }
  std::size_t bytes() const { return segment_.bytes().size(); }
  // Returns what keeps readable() alive.
  std::shared_ptr<std::byte> reading_owner() const { return readable_; }
  // Returns what keeps writable() alive.
  transport::SharedSegment segment() const { return segment_; }

 private:
  transport::SharedSegment segment_;
  std::shared_ptr<std::byte> readable_;
};

}  // namespace cox::detail
