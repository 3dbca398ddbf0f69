// A small GPT-2 with a sample batch, steered as a session steers it: for the test and the benchmark
// that compare predicted with counted bytes. Installs the counting allocator. Throws
// std::runtime_error with a Status' text where something fails.
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
// While backward goes on: as in a job of one rank, or as in one that moves them to buckets.
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

  // A configuration that plans memory, without a budget.
  static MemoryConfig planned();

  // The trial, and the front that follows from it.
  MemoryModel measure();

  struct Step {
    std::int64_t peak_bytes = 0;  // the highest counted level
    std::chrono::nanoseconds time{};
  };
  // One step under these actions; leaves no trace.
  Step run(const std::vector<MemoryAction>& actions);
  // Of the last step: equal numbers, equal bits.
  const detail::GradientPrints& gradients() const { return step_->gradients(); }

  // What a trial step itself holds while it runs: two copies of the generator's state.
  static std::int64_t held_by_trial();

 private:
  at::Tensor loss();

  MemoryConfig config_;
  Arithmetic arithmetic_;
  gpt2::Gpt2 model_ = nullptr;
  at::Tensor inputs_, targets_;
  detail::BlockWatch blocks_;
  detail::MemoryProbe probe_;
  detail::MemoryActuator actuator_{config_, RankId(0), blocks_, Log()};  // with the tier
  detail::GradientHolding held_;
  std::unique_ptr<detail::TrialStep> step_;
};

}  // namespace cox::test
