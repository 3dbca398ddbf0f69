// Functions that divide what the ranks of a node hold once: each rank owns one part of it, its
// slice, and is the only one to write there. Storages lie one behind another, in their order, and
// the slices follow the same order, so that a rank's slice is one stretch of memory. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <vector>

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

// Divides the bytes of the storages in proportion to `weights`, one a rank. Borders within a
// storage lie at multiples of `grain` elements. REQUIRES: weights are not negative, and not all 0.
SliceLayout divide_storages(const std::vector<StorageShape>& storages,
                            const std::vector<double>& weights, std::int64_t grain);

}  // namespace cox::detail
