#include "sdk/src/parallel/gradient_layout.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

std::vector<std::uint32_t> in_order(std::size_t n) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

}  // namespace

TEST_SUITE("gradient layout") {
  TEST_CASE("gradients lie in the given order, each at a multiple of 16 elements") {
    const std::vector<GradientShape> shapes = {{6}, {1}, {0}, {17}};
    const GradientLayout layout = lay_out(shapes, reverse_order(4), {});
    REQUIRE(layout.buckets.size() == 1);
    CHECK(layout.buckets[0].parameters == std::vector<std::size_t>{3, 2, 1, 0});
    CHECK(layout.places[3].offset == 0);
    CHECK(layout.places[2].offset == 32);
    CHECK(layout.places[1].offset == 32);
    CHECK(layout.places[0].offset == 48);
    CHECK(layout.buckets[0].elements == 64);
    CHECK(layout.buckets[0].bytes() == 256);
  }

  TEST_CASE("the first bucket is small; a bucket ends with the gradient that fills it") {
    const std::vector<GradientShape> shapes = {{16}, {16}, {1}, {1000}, {16}};
    const GradientLayout layout = lay_out(shapes, in_order(5), {.first_bytes = 64, .bytes = 512});
    REQUIRE(layout.buckets.size() == 3);
    CHECK(layout.buckets[0].parameters == std::vector<std::size_t>{0});
    CHECK(layout.buckets[1].parameters == std::vector<std::size_t>{1, 2, 3});
    CHECK(layout.buckets[2].parameters == std::vector<std::size_t>{4});
  }

  TEST_CASE("fp64 gradients have buckets of their own, frozen parameters lie nowhere") {
    const std::vector<GradientShape> shapes = {
        {4}, {4, BucketType::fp64}, {4}, {4, BucketType::fp32, false}};
    const GradientLayout layout = lay_out(shapes, in_order(4), {});
    REQUIRE(layout.buckets.size() == 2);
    CHECK(layout.places[0].bucket == layout.places[2].bucket);
    CHECK(layout.places[0].bucket != layout.places[1].bucket);
    CHECK(layout.places[3].bucket == BucketPlace::kNowhere);
  }

  TEST_CASE(
      "every gradient has a place of its own within its bucket, whatever the order and sizes") {
    std::mt19937_64 random(11);
    for (int round = 0; round < 500; ++round) {
      std::vector<GradientShape> shapes(1 + random() % 40);
      for (GradientShape& shape : shapes) {
        shape.elements = static_cast<std::int64_t>(random() % 300);
        shape.type = random() % 4 == 0 ? BucketType::fp64 : BucketType::fp32;
        shape.needed = random() % 8 != 0;
      }
      auto order = in_order(shapes.size());
      std::shuffle(order.begin(), order.end(), random);
      const auto bytes = static_cast<std::int64_t>(1 + random() % 4096);
      const GradientLayout layout =
          lay_out(shapes, order, {.first_bytes = bytes / 4, .bytes = bytes});
      std::size_t placed = 0;
      for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
        std::int64_t end = 0;
        for (const std::size_t p : layout.buckets[b].parameters) {
          CHECK(layout.places[p].bucket == b);
          CHECK(layout.places[p].offset >= end);
          CHECK(layout.places[p].offset % GradientLayout::kAlignment == 0);
          CHECK((shapes[p].type == layout.buckets[b].type));
          end = layout.places[p].offset + shapes[p].elements;
          ++placed;
        }
        CHECK(end <= layout.buckets[b].elements);
        const GradientBucket& bucket = layout.buckets[b];
        const std::size_t last = bucket.parameters.back();
        const std::int64_t before = layout.places[last].offset * bytes_of(bucket.type);
        CHECK((before < (b == 0 ? bytes / 4 : bytes) || bucket.parameters.size() == 1));
      }
      const auto needed = std::count_if(shapes.begin(), shapes.end(),
                                        [](const GradientShape& shape) { return shape.needed; });
      CHECK(placed == static_cast<std::size_t>(needed));
    }
  }
}
