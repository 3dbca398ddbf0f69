// EpochBook: the mean losses of epochs, from the losses of steps. A rollback takes steps back, over
// the start of an epoch, too. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "coxswain/fit.h"

namespace cox::detail {

class EpochBook {
 public:
  explicit EpochBook(std::uint64_t samples_an_epoch) : size_(samples_an_epoch) {}

  // A step took the samples from cursor `from` to `to` of one epoch. Losses that are not finite do
  // not count.
  void add(std::uint64_t from, std::uint64_t to, double loss);
  // Forgets the steps and epochs behind `cursor`, after a rollback.
  void rewind(std::uint64_t cursor);
  // The epoch that ends at this cursor; NaN without any finite loss.
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
  std::vector<Step> steps_;  // of this epoch and the one before
  std::vector<FitEpoch> epochs_;
};

}  // namespace cox::detail
