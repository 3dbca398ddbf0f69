// Saves torch's learning-rate schedules. The optimizer's options hold the rates and are saved with
// the optimizer; a schedule adds its progress. Training thread.
#pragma once

#include "coxswain/trainer.h"

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace cox::detail {

// Saves the number of calls of step(). The schedule outlives the part.
TrainingPart part_of(torch::optim::LRScheduler& schedule);
// Saves the best metric so far and the counts of the epochs since.
TrainingPart part_of(torch::optim::ReduceLROnPlateauScheduler& schedule);

}  // namespace cox::detail
