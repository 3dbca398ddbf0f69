#include "metrics/histogram.h"

#include <array>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

using namespace cox::metrics;

namespace {

constexpr std::array<double, 16> kBounds = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a value counts in the bucket of the least bound that is not below it") {
    BucketCounts counts(kBounds);
    counts.observe(0);
    counts.observe(1);
    counts.observe(1.5, 3);
    counts.observe(16);
    counts.observe(16.5, 2);  // above all bounds
    CHECK(counts.cumulative(0) == 2);
    CHECK(counts.cumulative(1) == 5);
    CHECK(counts.cumulative(14) == 5);
    CHECK(counts.cumulative(15) == 6);
    CHECK(counts.count() == 8);
    CHECK(counts.sum() == doctest::Approx(54.5));
  }

  TEST_CASE("what is no duration is refused and told, and spoils nothing") {
    BucketCounts counts(kBounds);
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0})
      counts.observe(value);
    CHECK(counts.refused() == 3);
    CHECK(counts.count() == 0);
    CHECK(counts.sum() == 0);
    CHECK(counts.cumulative(15) == 0);
  }
}
