// GradientLayout places gradients in few buckets, end to end, in backward's order of completion. So
// the first bucket can be sent while later gradients are still computed. Pure: a function of values
// that all ranks agree on (shapes, one order, sizes), and so equal on all ranks. A layout changes
// no bit of a gradient, because sums are element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cox::detail {

enum class BucketType : std::uint8_t { fp32, fp64 };
std::int64_t bytes_of(BucketType type);  // bytes of one element

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
  std::int64_t elements = 0;            // including gaps of alignment
  std::vector<std::size_t> parameters;  // in the order of their offsets
  std::int64_t bytes() const { return elements * bytes_of(type); }
};

struct GradientLayout {
  static constexpr std::int64_t kAlignment = 16;  // elements
  std::vector<GradientBucket> buckets;            // in the order of their starts
  std::vector<BucketPlace> places;                // one for each parameter
};

// `order`: a permutation of the parameters' indices, first finished first. A bucket ends with the
// gradient that reaches its size, so only the last bucket of a type is smaller.
GradientLayout lay_out(std::span<const GradientShape> shapes, std::span<const std::uint32_t> order,
                       const BucketSizes& sizes);

// MissingGradients tracks the gradients of a layout still to come in a step or backward pass.
class MissingGradients {
 public:
  // All are missing at first. `layout` outlives the object.
  explicit MissingGradients(const GradientLayout& layout);

  bool expects(std::size_t parameter) const {
    return layout_.places[parameter].bucket != BucketPlace::kNowhere && !has_come_[parameter];
  }
  // REQUIRES: expects(parameter).
  void note(std::size_t parameter);
  // Returns the first bucket from `next` on that lacks a gradient.
  std::size_t complete_from(std::size_t next) const;

 private:
  const GradientLayout& layout_;
  std::vector<bool> has_come_;        // has arrived, by parameter
  std::vector<std::size_t> missing_;  // gradients of each bucket
};

// Returns the parameters from last to first, a good first guess, because backward starts at a
// model's end.
std::vector<std::uint32_t> reverse_order(std::size_t parameters);

// BucketChoice is rank 0's decision for all ranks. Saved with the training state.
struct BucketChoice {
  std::vector<std::uint32_t> order;  // a permutation of the parameters
  BucketSizes sizes;
  friend bool operator==(const BucketChoice&, const BucketChoice&) = default;
};

// BucketTuning searches for the order and the sizes in the first steps. The order comes from the
// first step in which a rank sends gradients during backward; the lowest such rank's counts. Then
// each of some sizes is tried for a few steps, and the cheapest stays. The caller measures the cost
// of a step's buckets. Rank 0's clock decides the sizes, and the others follow its broadcast, so
// all ranks have one layout. Pure except for reported values; the caller broadcasts. Training
// thread.
class BucketTuning {
 public:
  static constexpr int kStepsPerSize = 4;
  static constexpr int kStepsForOrder = 8;  // until the first guess is final

  // `fixed_bytes` > 0: only the order is searched. `total_bytes`: size of all gradients.
  BucketTuning(std::size_t parameters, std::int64_t total_bytes, std::int64_t fixed_bytes);

  const BucketChoice& choice() const { return choice_; }
  bool is_over() const { return over_; }

  // After every averaged step until the search is over, one of these two is called, the same on all
  // ranks. Returns whether a choice is due: then rank 0's choice() is broadcast, and adopt() sets
  // it.
  bool wants_order() const { return !over_ && !has_order_; }
  // `order` is equal on all ranks, and empty until a rank has observed one.
  bool learn_order(std::span<const std::uint32_t> order);
  bool learn_cost(double seconds);
  void adopt(const BucketChoice& choice) { choice_ = choice; }
  // Sets an earlier run's choice and ends the search.
  void restore(const BucketChoice& choice);

 private:
  bool next_size();

  BucketChoice choice_;
  std::vector<BucketSizes> candidates_;
  std::vector<double> seconds_;  // shortest step of each candidate
  std::size_t trying_ = 0;
  int steps_ = 0;  // in the current part of the search
  bool has_order_ = false;
  bool over_ = false;
};

// Returns the order with all missing parameters, added from the end of the list.
std::vector<std::uint32_t> completed(std::span<const std::uint32_t> order, std::size_t parameters);

}  // namespace cox::detail
