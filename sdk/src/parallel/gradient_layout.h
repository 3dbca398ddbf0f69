// GradientLayout: which gradients lie where. Gradients of many parameters lie end to end in few
// buckets, in the order in which backward finishes them, so that the first bucket can be on its way
// while the later ones are still being computed. Pure; a function of what all ranks agree on
// (shapes, one order, sizes), so it is the same on all of them. It changes no bit of a
// gradient: sums are taken element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cox::detail {

enum class BucketType : std::uint8_t { fp32, fp64 };
std::int64_t bytes_of(BucketType type);  // of an element

struct GradientShape {
  std::int64_t elements = 0;
  BucketType type = BucketType::fp32;
  bool needed = true;  // false: the parameter never gets a gradient
};

struct BucketSizes {
  std::int64_t first_bytes = 1 << 20;  // small, so that traffic begins early
  std::int64_t bytes = 25 << 20;
  friend bool operator==(const BucketSizes&, const BucketSizes&) = default;
};

struct BucketPlace {
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  std::size_t bucket = kNowhere;
  std::int64_t offset = 0;  // in elements, a multiple of kAlignment
};

struct GradientBucket {
  BucketType type = BucketType::fp32;
  std::int64_t elements = 0;            // gaps of alignment included
  std::vector<std::size_t> parameters;  // in the order of their offsets
  std::int64_t bytes() const { return elements * bytes_of(type); }
};

struct GradientLayout {
  static constexpr std::int64_t kAlignment = 16;  // elements
  std::vector<GradientBucket> buckets;            // in the order in which they are started
  std::vector<BucketPlace> places;                // one a parameter
};

// `order`: a permutation of the parameters' indices, first finished first. A bucket ends with the
// gradient that brings it to its size, so none but the last of a type is smaller.
GradientLayout lay_out(std::span<const GradientShape> shapes, std::span<const std::uint32_t> order,
                       const BucketSizes& sizes);

// Backward runs through a model from its end, so this is a good first guess.
std::vector<std::uint32_t> reverse_order(std::size_t parameters);

}  // namespace cox::detail
