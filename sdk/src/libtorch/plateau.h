// Counters of ReduceLROnPlateauScheduler and LRScheduler, which LibTorch keeps without functions
// for them: a resumed loop puts them back. Training thread only.
#pragma once

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace cox::detail {

// PlateauCounters are live ones of a schedule, which outlives this.
struct PlateauCounters {
  float& best;
  int& last_epoch;
  int& bad_epochs;
  int& cooldown;
};
PlateauCounters counters_of(torch::optim::ReduceLROnPlateauScheduler& schedule);

// The number of calls of step(), live.
unsigned& steps_of(torch::optim::LRScheduler& schedule);

}  // namespace cox::detail
