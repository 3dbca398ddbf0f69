// Saving torch's learning-rate schedules. The rates themselves are options of the optimizer and are
// saved with it; a schedule adds how far it has come. Training thread.
#pragma once

#include "coxswain/trainer.h"

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace cox::detail {

// Saves the number of calls of step(). The schedule must outlive the part.
TrainingPart part_of(torch::optim::LRScheduler& schedule);
// Saves the best metric so far and the counts of the epochs since.
TrainingPart part_of(torch::optim::ReduceLROnPlateauScheduler& schedule);

}  // namespace cox::detail
