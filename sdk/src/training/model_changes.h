// Changes that a trainer's step makes to the model. StepBuffers follows writes of the forward pass;
// ModelUpdate applies the average of gradients. Owned by a Trainer; training thread only.
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

// StepBuffers keeps the values that a model's buffers (running statistics, counters, caches) had at
// a step's start. A step can then be repeated, and a step that went wrong leaves no NaN behind.
// Keeps the tensors alive. Copies only when the sum of all buffers' versions has moved, so a model
// that changes no buffer costs memory and no time. A single buffer's version is not enough: torch's
// BatchNorm writes running statistics without moving their version, and only its counter moves. In
// reproducible mode BatchStatistics keeps running statistics, and StepBuffers keeps the other
// buffers.
class StepBuffers {
 public:
  // REQUIRES: both arguments outlive the StepBuffers.
  StepBuffers(SessionState& state, torch::nn::Module& model);

  void begin_step();
  // `number` is the micro-batch's number in the step, counted over all ranks.
  void begin_micro_batch(std::uint64_t number) {
    if (statistics_) statistics_->begin_micro_batch(number);
  }
  void end_micro_batch() {
    if (statistics_) statistics_->end_micro_batch();
  }

  // Restores all buffers to their values at begin_step().
  void put_back();
  // Ends a step that is skipped: restores running statistics, and the other buffers that hold a
  // value that is not finite.
  void put_back_nonfinite();
  // Ends a step that is not skipped: merges running statistics over all ranks. Collective. Throws
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
  std::optional<std::uint64_t> seen_;  // versions of the buffers when kept_ was copied
};

// ModelUpdate turns an average of gradients into an update of a model. The class clips the
// gradients, calls the optimizer, and moves gradients and weights between the model and its
// masters. The ballot of every step compares the learning rates of the ranks.
class ModelUpdate final : public Actuator, public Comparing {
 public:
  // REQUIRES: all arguments outlive the ModelUpdate. `masters` may be null: the optimizer then
  // updates the parameters.
  ModelUpdate(SessionState& state, torch::nn::Module& model,
              std::unique_ptr<OptimizerPort> optimizer, MasterWeights* masters,
              const TrainerOptions& options);

  // Throws cox::Error on all ranks if optimizer options differ between ranks, or if the optimizer
  // updates no parameter of the model. The latter happens if the model was cloned after the
  // optimizer was made. Collective.
  void check_optimizer() const;

  torch::nn::Module& model() const { return model_; }
  OptimizerPort& optimizer() const { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }  // each once

  // Sets the learning rate of a step, before the step's ballot compares rates. Throws cox::Error
  // for a rate that is negative or not finite, whether set here or by the program.
  void set_learning_rate(std::uint64_t step) {
    if (options_.learning_rate) optimizer_->set_learning_rate(options_.learning_rate(step));
    require(check_rates(*optimizer_));
  }
  const char* name() const override { return "reduction"; }
  EqualBits equal_bits() const override;
  std::string explain_difference(transport::Communicator& ranks) override;

  // Updates the model by the gradients in .grad, unless the step is skipped. Drops the gradients.
  void apply(StepScope& step, const ReductionOutcome& outcome);
  void drop_gradients();

 private:
  SessionState& state_;
  torch::nn::Module& model_;
  const std::vector<at::Tensor> parameters_;
  MasterWeights* const masters_;
  const std::vector<at::Tensor> updated_;  // tensors that the optimizer updates
  const std::unique_ptr<OptimizerPort> optimizer_;
  const TrainerOptions& options_;
  bool is_shown_ = false;  // the optimizer's size was reported, which is known after its first step
  AddedActuator<ModelUpdate> added_;
};

}  // namespace cox::detail
