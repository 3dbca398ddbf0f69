// PlantedFaults makes go wrong in a run what Faults says. Training thread; the tensors of a leak
// live as long as this does.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "coxswain/trainer.h"
#include "sdk/examples/gpt2/options.h"

namespace gpt2 {

class PlantedFaults {
 public:
  // `trainer` gets a state that takes its time to save, where saves are to be slow. Before the
  // first step.
  PlantedFaults(const Faults& faults, cox::Trainer& trainer);

  // Before a step does its work: waits for data, and keeps memory.
  void begin(cox::TrainerStep& step);

  // Returns the loss of a step, through which gradients become what they are to be.
  torch::Tensor spoiled(torch::Tensor loss, std::uint64_t step) const;

 private:
  Faults faults_;
  std::vector<torch::Tensor> leaked_;
};

}  // namespace gpt2
