// EpochBook computes the mean losses of epochs from the losses of steps. A rollback removes steps,
// also across the start of an epoch. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "coxswain/fit.h"

namespace cox::detail {

class EpochBook {
 public:
  explicit EpochBook(std::uint64_t samples_an_epoch) : size_(samples_an_epoch) {}

  // Adds a step with the samples from cursor `from` to `to` of one epoch. Losses that are not
  // finite are ignored.
  void add(std::uint64_t from, std::uint64_t to, double loss);
  // Drops the steps and epochs after `cursor`, for a rollback.
  void rewind(std::uint64_t cursor);
  // Returns the mean loss of the epoch that ends at `cursor`; NaN without any finite loss.
  double loss_of_epoch_before(std::uint64_t cursor) const;

  void close(FitEpoch epoch) { epochs_.push_back(epoch); }
  const std::vector<FitEpoch>& epochs() const { return epochs_; }

 private:
  struct Step {
    std::uint64_t from = 0;
    double samples = 0;
    double loss = 0;
  };
  std::uint64_t size_;
  std::vector<Step> steps_;  // steps of the present epoch and the one before
  std::vector<FitEpoch> epochs_;
};

}  // namespace cox::detail
