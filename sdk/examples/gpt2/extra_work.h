// ExtraWork: makes a rank slower by real work. Before a slowed step does its own work, forward and
// backward of the same samples run again in a second model that shares the weights, and the
// results are thrown away. Time is booked as forward and backward of that rank; parameters,
// gradients, buffers, random numbers, blocks and the loss never see any of it. In fp32, whatever
// formats the plan has; its activations are on top of what a memory plan predicts.
//
//   ExtraWork extra(model, slowdowns, session.rank());
//   for (auto& step : trainer.steps(dataset)) { extra.run(step); ... }
//
// Does not communicate. The training thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coxswain/trainer.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/examples/gpt2/slowdown.h"

namespace gpt2 {

class ExtraWork {
 public:
  // `most_samples`: worked on at a time; 0 = the whole share.
  ExtraWork(const Gpt2& model, std::vector<Slowdown> slowdowns, std::int64_t rank,
            std::int64_t most_samples = 0);

  // Samples that the step's extra work was done on: (factor - 1) times those of the share, what is
  // less than a sample carried over to the next step.
  std::int64_t run(cox::TrainerStep& step);

 private:
  void share_weights();
  void work_on(cox::TrainerStep& step, std::int64_t samples);

  Gpt2 model_;
  std::vector<Slowdown> slowdowns_;
  std::int64_t rank_;
  std::int64_t most_samples_;
  std::optional<Gpt2> twin_;  // made when first needed
  double owed_samples_ = 0;
};

}  // namespace gpt2
