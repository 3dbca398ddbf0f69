// A histogram with fixed buckets that cannot be poisoned: values that are not finite are refused.
// Plain value, copied into every snapshot; written by the coordinator's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace cox::metrics {

class BucketCounts {
 public:
  static constexpr std::size_t kMaxBuckets = 16;

  BucketCounts() = default;
  // REQUIRES: `bounds` ascending, at most kMaxBuckets, and alive as long as this value.
  explicit BucketCounts(std::span<const double> bounds) : bounds_(bounds) {}

  // Counts `times` observations of `value`. A value that is not finite or negative is refused.
  void observe(double value, std::uint64_t times = 1);

  std::span<const double> bounds() const { return bounds_; }
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  std::uint64_t refused() const { return refused_; }
  // Observations <= bounds()[index].
  std::uint64_t cumulative(std::size_t index) const;

 private:
  std::span<const double> bounds_;
  std::array<std::uint64_t, kMaxBuckets> counts_{};
  std::uint64_t count_ = 0;
  std::uint64_t refused_ = 0;
  double sum_ = 0;
};

}  // namespace cox::metrics
