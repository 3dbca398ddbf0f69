// BucketCounts is a histogram with fixed buckets. Values that are not finite are refused, because
// they would spoil the sum. A plain value, copied into every snapshot; only the coordinator's
// thread writes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace cox::metrics {

class BucketCounts {
 public:
  static constexpr std::size_t kMaxBuckets = 16;

  BucketCounts() = default;
  // REQUIRES: `bounds` are ascending, at most kMaxBuckets, and outlive this value.
  explicit BucketCounts(std::span<const double> bounds) : bounds_(bounds) {}

  // Counts `times` observations of `value`. Refuses a value that is negative or not finite.
  void observe(double value, std::uint64_t times = 1);

  std::span<const double> bounds() const { return bounds_; }
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  std::uint64_t refused() const { return refused_; }
  // Returns the number of observations <= bounds()[index].
  std::uint64_t cumulative(std::size_t index) const;

 private:
  std::span<const double> bounds_;
  std::array<std::uint64_t, kMaxBuckets + 1> counts_{};  // the last one: above all bounds
  std::uint64_t count_ = 0;
  std::uint64_t refused_ = 0;
  double sum_ = 0;
};

}  // namespace cox::metrics
