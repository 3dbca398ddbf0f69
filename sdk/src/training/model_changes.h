// The changes that a trainer's step makes to the model: StepBuffers follows what the forward pass
// writes, and ModelUpdate does what the average of gradients asks for. Owned by a Trainer; training
// thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/master_weights.h"
#include "coxswain/reducer.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/parallel/batch_statistics.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/step_queue.h"

namespace cox::detail {

// StepBuffers keeps the buffers of a model that its forward pass may change (running statistics,
// counters, caches) as they were at a step's start, so that the step can be taken again and a step
// that went wrong leaves no NaN behind. Keeps the tensors alive. Copies only when the version of
// some buffer has moved: a model that changes none costs memory and no time. Not by each one's own
// version: torch's BatchNorm writes running statistics without moving theirs, and only its counter
// tells. In reproducible mode BatchStatistics keeps running statistics, and StepBuffers the others.
class StepBuffers {
 public:
  // Both must outlive this.
  StepBuffers(SessionState& state, torch::nn::Module& model);

  void begin_step();
  // `number`: of the micro-batch in the step, counted over all ranks.
  void begin_micro_batch(std::uint64_t number) {
    if (statistics_) statistics_->begin_micro_batch(number);
  }
  void end_micro_batch() {
    if (statistics_) statistics_->end_micro_batch();
  }

  // Makes all buffers what they were at begin_step().
  void put_back();
  // Ends a step that is skipped: does the same for running statistics, and of the others for those
  // that hold a value that is not finite.
  void put_back_nonfinite();
  // Ends a step that is not: makes running statistics those of all ranks. Collective. Throws
  // cox::Error.
  void fold(StepScope& step, const StepShare& share);

 private:
  struct Kept {
    at::Tensor buffer;
    at::Tensor before;
  };
  std::uint64_t versions() const;

  SessionState& state_;
  std::optional<BatchStatistics> statistics_;  // reproducible mode
  std::vector<at::Tensor> all_;
  std::vector<Kept> kept_;
  std::optional<std::uint64_t> seen_;  // versions that the copies are of
};

// ModelUpdate makes an average of gradients an update of a model: clips the gradients, lets the
// optimizer step, and moves gradients and weights between the model and its masters. The ballot of
// every step compares what the optimizer is about to multiply gradients with.
class ModelUpdate final : public Actuator, public Comparing {
 public:
  // All of it must outlive this. `masters` may be null: the optimizer updates the parameters.
  ModelUpdate(SessionState& state, torch::nn::Module& model,
              std::unique_ptr<OptimizerPort> optimizer, MasterWeights* masters,
              const TrainerOptions& options);

  // Throws cox::Error on all ranks where the optimizer updates nothing of the model, as one of a
  // model that was cloned since, or ranks have other options of it. Collective.
  void check_optimizer() const;

  torch::nn::Module& model() const { return model_; }
  OptimizerPort& optimizer() const { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }  // each once

  // Sets the learning rate of a step, before the step's ballot compares it. Throws cox::Error for
  // one that is negative or not finite, whoever set it.
  void set_learning_rate(std::uint64_t step) {
    if (options_.learning_rate) optimizer_->set_learning_rate(options_.learning_rate(step));
    require(check_rates(*optimizer_));
  }
  const char* name() const override { return "reduction"; }
  EqualBits equal_bits() const override;
  std::string explain_difference(transport::Communicator& ranks) override;

  // Updates the model by what .grad of its parameters holds, unless the step is skipped. Drops the
  // gradients.
  void apply(StepScope& step, const ReductionOutcome& outcome);
  void drop_gradients();

 private:
  SessionState& state_;
  torch::nn::Module& model_;
  const std::vector<at::Tensor> parameters_;
  MasterWeights* const masters_;
  const std::vector<at::Tensor> updated_;  // by the optimizer
  const std::unique_ptr<OptimizerPort> optimizer_;
  const TrainerOptions& options_;
  bool is_shown_ = false;  // the optimizer's size, which it has after its first step
  AddedActuator<ModelUpdate> added_;
};

}  // namespace cox::detail
