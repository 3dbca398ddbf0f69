#include "sdk/src/shard/slices.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace cox::detail {
namespace {

// Returns the border of the storage that is nearest to a byte of the whole.
std::int64_t border_near(double byte, double first_byte, const StorageShape& shape,
                         std::int64_t grain) {
  const double grain_bytes = static_cast<double>(grain * shape.element_bytes);
  const auto grains = std::llround((byte - first_byte) / grain_bytes);
  return std::clamp<std::int64_t>(grains * grain, 0, shape.elements);
}

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
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
    layout.bytes = align_up(layout.bytes + shape.bytes());
    first_byte += static_cast<double>(shape.bytes());
  }
  return layout;
}

}  // namespace cox::detail
