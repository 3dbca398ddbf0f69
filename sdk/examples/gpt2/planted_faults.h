// PlantedFaults plants the faults that Faults names into a run. Training thread; the tensors of a
// leak live as long as the PlantedFaults.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "coxswain/trainer.h"
#include "sdk/examples/gpt2/options.h"

namespace gpt2 {

class PlantedFaults {
 public:
  // Gives `trainer` a state that is slow to save, if saves are to be slow. Call it before the first
  // step.
  PlantedFaults(const Faults& faults, cox::Trainer& trainer);

  // Waits for data and leaks memory, before a step does its work.
  void begin(cox::TrainerStep& step);

  // Returns the loss of a step with a hook that spoils gradients, if the step is to overflow.
  torch::Tensor spoiled(torch::Tensor loss, std::uint64_t step) const;

 private:
  Faults faults_;
  std::vector<torch::Tensor> leaked_;
};

}  // namespace gpt2
