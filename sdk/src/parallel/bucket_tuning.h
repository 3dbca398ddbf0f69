// BucketTuning: finds the order and the sizes of gradient buckets in the first steps. The first
// step in which a rank sends gradients during backward shows in which order they become ready; then
// some sizes are tried for a few steps each, and the one that costs least (the caller says what a
// step's buckets cost) stays. The order is the lowest such rank's, sizes are rank 0's, by its own
// clock; the others follow its broadcast, so all ranks have one layout. The choice changes the time
// of a step and none of its bits. Pure but for what it is told; the caller broadcasts. Training
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sdk/src/parallel/gradient_layout.h"

namespace cox::detail {

// What rank 0 tells the others. Saved with the training state.
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

  // One of these two after every averaged step until it is over; the same calls on all ranks. True
  // when a choice is due now: rank 0's choice() is to be broadcast and taken over by adopt().
  bool wants_order() const { return !over_ && !has_order_; }
  // Equal on all ranks; empty where none has seen one yet.
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

// Orders with parameters left out, filled up from the end of the list as backward would.
std::vector<std::uint32_t> completed(std::span<const std::uint32_t> order, std::size_t parameters);

}  // namespace cox::detail
