// GradientLayout says which gradient lies where. Gradients of many parameters lie end to end in few
// buckets, in the order in which backward finishes them, so that the first bucket can be on its way
// while the later ones are still being computed. Pure; a function of what all ranks agree on
// (shapes, one order, sizes), so it is the same on all of them. It changes no bit of a gradient:
// sums are taken element by element.
//
// BucketTuning finds the order and the sizes in the first steps. The first step in which a rank
// sends gradients during backward shows in which order they become ready; then some sizes are tried
// for a few steps each, and the one that costs least (the caller says what a step's buckets cost)
// stays. The order is the lowest such rank's, sizes are rank 0's, by its own clock; the others
// follow its broadcast, so all ranks have one layout. Pure but for what it is told; the caller
// broadcasts. Training thread.
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

// MissingGradients knows which gradients of a layout are still to come, in a step or backward pass.
class MissingGradients {
 public:
  // All are missing. `layout` outlives this.
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
  std::vector<bool> has_come_;        // by parameter
  std::vector<std::size_t> missing_;  // gradients of each bucket
};

// Returns the parameters from the last to the first: backward runs through a model from its end, so
// this is a good first guess.
std::vector<std::uint32_t> reverse_order(std::size_t parameters);

// BucketChoice is what rank 0 tells the others. It is saved with the training state.
struct BucketChoice {
  std::vector<std::uint32_t> order;  // a permutation of the parameters
  BucketSizes sizes;
  friend bool operator==(const BucketChoice&, const BucketChoice&) = default;
};

class BucketTuning {
 public:
  static constexpr int kStepsPerSize = 4;
  static constexpr int kStepsForOrder = 8;  // until the first guess stands

  // `fixed_bytes` > 0: only the order is learned. `total_bytes`: of all gradients.
  BucketTuning(std::size_t parameters, std::int64_t total_bytes, std::int64_t fixed_bytes);

  const BucketChoice& choice() const { return choice_; }
  bool is_over() const { return over_; }

  // One of these two is called after every averaged step until the search is over, the same on all
  // ranks. Returns whether a choice is due now: rank 0's choice() is then broadcast, and taken over
  // by adopt().
  bool wants_order() const { return !over_ && !has_order_; }
  // `order` is equal on all ranks, and empty where none has seen one yet.
  bool learn_order(std::span<const std::uint32_t> order);
  bool learn_cost(double seconds);
  void adopt(const BucketChoice& choice) { choice_ = choice; }
  // Takes an earlier run's choice and ends the search.
  void restore(const BucketChoice& choice);

 private:
  bool next_size();

  BucketChoice choice_;
  std::vector<BucketSizes> candidates_;
  std::vector<double> seconds_;  // shortest step of each candidate
  std::size_t trying_ = 0;
  int steps_ = 0;  // of what is being learned
  bool has_order_ = false;
  bool over_ = false;
};

// Returns an order in which parameters were left out, filled up from the end of the list.
std::vector<std::uint32_t> completed(std::span<const std::uint32_t> order, std::size_t parameters);

}  // namespace cox::detail
