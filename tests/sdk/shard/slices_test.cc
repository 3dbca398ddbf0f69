#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "sdk/src/shard/node_copy.h"

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

struct Case {
  std::vector<StorageShape> shapes;
  std::vector<double> weights;
  std::int64_t grain;
};

Case random_case(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  Case made;
  const std::int64_t sizes[] = {1, 2, 4, 8};
  for (std::int64_t s = pick(8); s >= 0; --s)
    made.shapes.push_back({1 + pick(5000), sizes[pick(4)]});
  for (std::int64_t r = pick(6); r >= 0; --r) made.weights.push_back(static_cast<double>(pick(5)));
  made.weights.back() += 1;
  made.grain = 1 + pick(300);
  return made;
}

}  // namespace

TEST_SUITE("slices") {
  TEST_CASE(
      "slices of 1,000 random models cover each storage once, in order, at multiples of the "
      "grain") {
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 1000; ++trial) {
      CAPTURE(trial);
      const Case given = random_case(random);
      const SliceLayout layout = divide_storages(given.shapes, given.weights, given.grain);
      REQUIRE(layout.storages.size() == given.shapes.size());
      std::int64_t behind = 0;
      for (std::size_t s = 0; s < given.shapes.size(); ++s) {
        const StoragePlace& place = layout.storages[s];
        CHECK(place.offset_bytes % kStorageAlignment == 0);
        CHECK(place.offset_bytes >= behind);
        behind = place.offset_bytes + given.shapes[s].bytes();
        std::int64_t next = 0;
        for (const ElementRange& slice : place.slices) {
          CHECK(slice.begin == next);
          CHECK(slice.end >= slice.begin);
          const bool is_border = slice.end % given.grain == 0;
          CHECK((is_border || slice.end == given.shapes[s].elements));
          next = slice.end;
        }
        CHECK(next == given.shapes[s].elements);
      }
      CHECK(layout.bytes >= behind);
    }
  }

  TEST_CASE("each rank owns its part of all bytes, to one grain and one end of a storage") {
    std::mt19937_64 random(6);
    for (int trial = 0; trial < 300; ++trial) {
      CAPTURE(trial);
      const Case given = random_case(random);
      const SliceLayout layout = divide_storages(given.shapes, given.weights, given.grain);
      double total = 0;
      for (const StorageShape& shape : given.shapes) total += static_cast<double>(shape.bytes());
      const double weights = std::accumulate(given.weights.begin(), given.weights.end(), 0.0);
      for (std::size_t rank = 0; rank < given.weights.size(); ++rank) {
        double owned = 0;
        for (std::size_t s = 0; s < given.shapes.size(); ++s)
          owned += static_cast<double>(layout.storages[s].slices[rank].size() *
                                       given.shapes[s].element_bytes);
        // Both borders are rounded, each to the nearest grain or the end of its storage.
        CHECK(std::abs(owned - total * given.weights[rank] / weights) <=
              static_cast<double>(given.grain) * 8 + 1);
      }
    }
  }

  TEST_CASE("the common part of ranges that do not meet is empty") {
    CHECK(common_part({0, 4}, {2, 9}) == ElementRange{2, 4});
    CHECK(common_part({0, 4}, {4, 9}).is_empty());
    CHECK(common_part({6, 9}, {0, 4}).is_empty());
  }
}
