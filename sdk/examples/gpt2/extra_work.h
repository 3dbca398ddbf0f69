// ExtraWork slows a rank down by real work. Before a slowed step, forward and backward of the same
// samples run in a second model that shares the weights, and the results are discarded. The time is
// booked as the rank's forward and backward. Parameters, gradients, buffers, random numbers, blocks
// and the loss do not change. The extra work runs in fp32 under every plan; a memory plan does not
// predict its activations.
//
//   ExtraWork extra(model, slowdowns, session.rank());
//   for (auto& step : trainer.steps(dataset)) { extra.run(step); ... }
//
// Does not communicate. Training thread.
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
  // `most_samples` is the number of samples worked on at a time; 0 = the whole share.
  ExtraWork(const Gpt2& model, std::vector<Slowdown> slowdowns, std::int64_t rank,
            std::int64_t most_samples = 0);

  // Returns the number of samples of the step's extra work: (factor - 1) times the samples of the
  // share. Fractions of a sample carry over to the next step.
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
