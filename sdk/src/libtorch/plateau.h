// Access to counters of ReduceLROnPlateauScheduler and LRScheduler, for which LibTorch has no
// functions. A resumed loop restores the counters. Training thread only.
#pragma once

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace cox::detail {

// PlateauCounters refers to the live counters of a schedule, which must outlive it.
struct PlateauCounters {
  float& best;
  int& last_epoch;
  int& bad_epochs;
  int& cooldown;
};
PlateauCounters counters_of(torch::optim::ReduceLROnPlateauScheduler& schedule);

// Returns a reference to the live number of calls of step().
unsigned& steps_of(torch::optim::LRScheduler& schedule);

}  // namespace cox::detail
