// A small GPT-2 with a sample batch, steered as in a session. The test and the benchmark of
// predicted against counted bytes use it. Installs the counting allocator. Errors are
// std::runtime_error with a Status' text.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/settings/memory.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/precision/trial_pass.h"

namespace cox::test {

enum class Arithmetic { fp32, bf16_autocast };
// Gradients during backward: kept, as in a job of one rank, or moved to buckets.
enum class Gradients { kept, released };

struct SampleShape {
  gpt2::Config model;
  std::int64_t sequences = 4;
};

class SteeredGpt {
 public:
  explicit SteeredGpt(const SampleShape& shape, MemoryConfig config = planned(),
                      Arithmetic arithmetic = Arithmetic::fp32,
                      Gradients gradients = Gradients::kept);

  // Returns a configuration that plans memory, without a budget.
  static MemoryConfig planned();

  // Runs the trial. Returns its front.
  MemoryModel measure();

  struct Step {
    std::int64_t peak_bytes = 0;  // highest counted level
    std::chrono::nanoseconds time{};
  };
  // Runs one step under these actions without lasting effects.
  Step run(const std::vector<MemoryAction>& actions);
  // Returns prints of the last step's gradients: equal numbers mean equal bits.
  const detail::GradientPrints& gradients() const { return step_->gradients(); }

  // Returns the bytes that a trial step itself holds: two copies of the generator's state.
  static std::int64_t held_by_trial();

 private:
  at::Tensor loss();

  MemoryConfig config_;
  Arithmetic arithmetic_;
  gpt2::Gpt2 model_ = nullptr;
  at::Tensor inputs_, targets_;
  detail::BlockWatch blocks_;
  detail::MemoryProbe probe_;
  detail::MemoryActuator actuator_{config_, RankId(0), blocks_, Log()};  // includes the tier
  detail::GradientHolding held_;
  std::unique_ptr<detail::TrialStep> step_;
};

}  // namespace cox::test
