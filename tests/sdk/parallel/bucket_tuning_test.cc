#include "sdk/src/parallel/gradient_layout.h"

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Returns the steps until the search ends, including one for the order. `seconds` gives a step's
// cost by size.
template <class Seconds>
int search(BucketTuning& tuning, std::span<const std::uint32_t> order, Seconds seconds) {
  int steps = 0;
  for (; !tuning.is_over() && steps < 100; ++steps) {
    if (tuning.wants_order()) {
      CHECK(tuning.learn_order(order));
    } else {
      (void)tuning.learn_cost(seconds(tuning.choice().sizes.bytes, steps));
    }
  }
  return steps;
}

}  // namespace

TEST_SUITE("bucket tuning") {
  TEST_CASE("the first step shows the order, the shortest step the size") {
    BucketTuning tuning(3, 100 * kMiB, 0);
    const std::vector<std::uint32_t> order = {2, 0, 1};
    const int steps = search(tuning, order,
                             [](std::int64_t bytes, int) { return bytes == 4 * kMiB ? 0.9 : 1.0; });
    CHECK(tuning.choice().order == order);
    CHECK(tuning.choice().sizes.bytes == 4 * kMiB);
    CHECK(tuning.choice().sizes.first_bytes == kMiB);
    CHECK(steps == 1 + 4 * BucketTuning::kStepsPerSize);
  }

  TEST_CASE("the first step with a layout, which touches new memory, does not count") {
    BucketTuning tuning(1, 100 * kMiB, 0);
    const std::vector<std::uint32_t> order = {0};
    search(tuning, order, [](std::int64_t bytes, int step) {
      const bool is_first = (step - 1) % BucketTuning::kStepsPerSize == 0;
      return is_first ? 0.1 : (bytes == kMiB ? 1.0 : 2.0);
    });
    CHECK(tuning.choice().sizes.bytes == kMiB);
  }

  TEST_CASE("a small model tries no sizes that would be one bucket anyway") {
    BucketTuning tuning(2, 1000, 0);
    const std::vector<std::uint32_t> order = {1, 0};
    CHECK(search(tuning, order, [](std::int64_t, int) { return 1.0; }) == 1);
  }

  TEST_CASE("a size that was asked for is kept, the order is still learned") {
    BucketTuning tuning(2, 100 * kMiB, 12345);
    const std::vector<std::uint32_t> order = {0, 1};
    CHECK(search(tuning, order, [](std::int64_t, int) { return 1.0; }) == 1);
    CHECK(tuning.choice().sizes.bytes == 12345);
    CHECK(tuning.choice().order == order);
  }

  TEST_CASE("where no rank sees an order the first guess stands in the end") {
    BucketTuning tuning(3, 1000, 0);
    for (int i = 1; i < BucketTuning::kStepsForOrder; ++i) CHECK_FALSE(tuning.learn_order({}));
    CHECK(tuning.wants_order());
    CHECK(tuning.learn_order({}));
    CHECK(tuning.choice().order == std::vector<std::uint32_t>{2, 1, 0});
    CHECK(tuning.is_over());
  }

  TEST_CASE("parameters without a gradient in the first step come last, from the end") {
    const std::vector<std::uint32_t> order = {3, 1};
    CHECK(completed(order, 5) == std::vector<std::uint32_t>{3, 1, 4, 2, 0});
  }

  TEST_CASE("a restored choice ends the search") {
    BucketTuning tuning(2, 100 * kMiB, 0);
    const BucketChoice choice{{1, 0}, {10, 20}};
    tuning.restore(choice);
    CHECK(tuning.is_over());
    CHECK(tuning.choice() == choice);
    CHECK_FALSE(tuning.wants_order());
    CHECK_FALSE(tuning.learn_cost(1.0));
  }
}
