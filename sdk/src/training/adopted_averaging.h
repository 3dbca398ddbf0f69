// AdoptedAveraging is the joint work of the ranks of an adopted loop. The ranks start from rank 0's
// model, average gradients after each backward pass and losses where requested, and agree on each
// step. Ranks also compare their first batches and, now and then, their weights. A single rank only
// closes its steps; a loop that is only watched has no joint work. Owned by Adoption; training
// thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/hash.h"
#include "coxswain/manual.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/training/adopted_models.h"
#include "sdk/src/training/equal_ranks.h"

namespace cox::detail {

// FirstBatch compares the inputs, beside parameters, of the first operators of an adopted loop.
// Ranks that get the same batch train on the same samples, which is rarely intended.
class FirstBatch {
 public:
  // Returns whether further operators of the forward pass are to be read.
  bool wants_calls() const { return reads_ < kReads; }
  // Turns the comparison off, for a job without another rank.
  void leave_out() { reads_ = kReads; }
  // Reads the operands that are neither parameters nor computed from one.
  void read(const OperatorCall& call, const AdoptedModels& models);
  // Compares the hash with the other ranks, once, and warns. Collective the first time; waits by
  // polling. Throws cox::Error.
  void compare(SessionState& state);

 private:
  // Several operators are read: the first may read positions, which are equal on all ranks.
  static constexpr int kReads = 4;

  Fnv1a64 hash_;
  int reads_ = 0;
  bool is_compared_ = false;
};

// LossMean replaces the loss on which a loop calls backward() by the mean over ranks. An optimizer
// that reads losses (LBFGS) then decides alike on all ranks. The engine identifies a loss by its
// node only, so LossMean records the scalars that the forward pass makes.
class LossMean {
 public:
  // Records the results of an operator of the forward pass.
  void note_results(std::span<const c10::IValue> results);
  // Finds the loss from which the pass starts. Throws cox::Error if no loss has one element.
  void find(const BackwardPass& pass);
  // Writes the mean over ranks into the loss. Collective; waits by polling. Throws cox::Error.
  void average(SessionState& state);
  void end_step() { scalars_.clear(); }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<WeakTensor> scalars_;  // made by the step's forward passes
  at::Tensor loss_;                  // loss of the backward pass that runs
};

// ProgramGradients holds the gradients that the program can read by another handle or a view: a
// flat buffer of all gradients, say, or a tensor that the program took from .grad. Autograd adds to
// such a gradient in place. Averages are written there as well, so that the program reads them.
class ProgramGradients {
 public:
  // Notes these gradients before a backward pass.
  void note(const std::vector<at::Tensor>& parameters);
  // Leaves out gradients that the pass replaced.
  void backward_ended();
  // Copies the averages back, and lets go of all gradients.
  void give_back();

 private:
  struct Held {
    at::Tensor parameter;
    at::Tensor gradient;
    std::int64_t version;
  };
  std::vector<Held> held_;
};

class AdoptedAveraging {
 public:
  // `maker` selects another way of averaging; may be empty. Throws cox::Error in the same cases as
  // ManualParallel. Collective.
  AdoptedAveraging(Session& session, const AdoptOptions& options, const ReductionMaker& maker);

  bool only_watches() const { return !ranks_; }
  // Copies rank 0's buffers and its values of `parameters`, which are some of the model's, to all
  // ranks. Collective; throws cox::Error.
  void add(torch::nn::Module& model, const std::vector<at::Tensor>& parameters,
           const AdoptOptions& options);
  // Compares the weights of the ranks from now on, also those of models added since the last call.
  // Call watch_weights() between steps.
  void watch_weights(const AdoptedModels& models, BlockWatch& blocks);

  // Receives the operators of a forward pass while wants_calls().
  bool wants_calls() const { return first_batch_.wants_calls() || losses_; }
  void begin(const OperatorCall& call, const AdoptedModels& models) {
    if (first_batch_.wants_calls()) first_batch_.read(call, models);
  }
  void end(std::span<const c10::IValue> results) {
    if (losses_) losses_->note_results(results);
  }
  // Notes the gradients to which the pass may add.
  void note_gradients(const AdoptedModels& models) {
    if (exchanges()) gradients_.note(models.parameters());
  }
  // Finds the pass's loss if losses are averaged. Throws cox::Error if the pass starts from none.
  void backward_begins(const BackwardPass& pass) {
    if (losses_) losses_->find(pass);
  }
  bool averages_losses() const { return losses_.has_value(); }

  // Averages the gradients that a backward pass added. Collective; waits by polling; throws
  // cox::Error.
  void average(StepScope& step, const AdoptedModels& models);
  // Records that the loop polls stop_requested(), so closing a step does not end the loop.
  void loop_asks() { loop_asks_ = true; }
  bool loop_is_asking() const { return loop_asks_; }
  // Records that the loop is saved before it ends, so closing a step does not end the loop.
  void loop_is_kept() { loop_is_kept_ = true; }
  // Agrees on the step with all ranks. Returns Stop::yes if the ranks were asked to stop and the
  // loop neither polls nor is kept. Collective.
  enum class Stop : bool { no, yes };
  Stop close(StepScope& step);
  // Prepares the end: the loop is over, and the last step is about to close.
  void settle() {
    if (weights_) (*weights_)->settle();
  }

 private:
  // Returns whether there are other ranks to average with.
  bool exchanges() const { return ranks_ && session_.world_size() > 1; }

  Session& session_;
  std::optional<ManualParallel> ranks_;  // none if the loop is only watched
  FirstBatch first_batch_;
  ProgramGradients gradients_;
  std::optional<LossMean> losses_;             // if losses are averaged
  std::optional<Added<WeightCheck>> weights_;  // once the first step begins
  bool has_new_models_ = false;                // models whose weights are not compared yet
  bool loop_asks_ = false;
  bool loop_is_kept_ = false;
};

}  // namespace cox::detail
