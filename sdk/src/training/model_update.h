// ModelUpdate makes an average of gradients an update of a trainer's model: clips the gradients,
// lets the optimizer step, and moves gradients and weights between the model and its masters. The
// ballot of every step compares what the optimizer is about to multiply gradients with. Owned by a
// Trainer; training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coxswain/master_weights.h"
#include "coxswain/reducer.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/optimizer_port.h"

namespace cox::detail {

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

  // Sets the learning rate of a step, before the step's ballot compares it.
  void set_learning_rate(std::uint64_t step) {
    if (options_.learning_rate) optimizer_->set_learning_rate(options_.learning_rate(step));
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
