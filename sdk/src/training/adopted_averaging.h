// AdoptedAveraging is what the ranks of an adopted loop do together: they start from rank 0's
// model, average gradients after each backward pass and losses where asked, agree on each step, and
// compare their first batches and, now and then, their weights. A single rank only closes its
// steps, and a loop that is watched only does not even that. Owned by Adoption; training thread
// only.
#pragma once

#include <ATen/core/Tensor.h>

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

// FirstBatch compares what the first operators of an adopted loop read beside parameters: ranks
// that get the same batch train on the same samples, which hardly anybody means to do.
class FirstBatch {
 public:
  // Returns whether the operators of the forward pass are still to be read.
  bool wants_calls() const { return reads_ < kReads; }
  // Reads nothing, because there is no rank to compare with.
  void leave_out() { reads_ = kReads; }
  // Reads those operands that are neither parameters nor computed from one.
  void read(const OperatorCall& call, const AdoptedModels& models);
  // Compares what was read with the other ranks, once, and warns. Collective the first time; waits
  // by polling. Throws cox::Error.
  void compare(SessionState& state);

 private:
  // Several operators are read: the first may read positions, which are equal on all ranks.
  static constexpr int kReads = 4;

  Fnv1a64 hash_;
  int reads_ = 0;
  bool is_compared_ = false;
};

// LossMean leaves the mean over ranks in the loss that a loop calls backward() on, so that an
// optimizer that looks at losses (LBFGS) decides alike on all ranks. The engine knows a loss by its
// node only, so the scalars that the forward pass makes are noted.
class LossMean {
 public:
  // Notes the results of an operator of the forward pass.
  void note_results(std::span<const c10::IValue> results);
  // Finds the loss that the pass starts from. Throws cox::Error where there is none of one element.
  void find(const BackwardPass& pass);
  // Writes the mean over ranks into that loss. Collective; waits by polling. Throws cox::Error.
  void average(SessionState& state);
  void end_step() { scalars_.clear(); }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<WeakTensor> scalars_;  // that the step's forward passes made
  at::Tensor loss_;                  // of the backward pass that runs
};

class AdoptedAveraging {
 public:
  // `maker` makes the way of averaging, if it has one. Throws cox::Error where ManualParallel does.
  // Collective.
  AdoptedAveraging(Session& session, const AdoptOptions& options, const ReductionMaker& maker);

  bool only_watches() const { return !ranks_; }
  // Copies rank 0's values of `parameters`, some of the model's, and buffers to all ranks.
  // Collective; throws cox::Error.
  void add(torch::nn::Module& model, const std::vector<at::Tensor>& parameters,
           const AdoptOptions& options);
  // Compares the weights of the ranks from now on, those of models added since the last call as
  // well. Between steps.
  void watch_weights(const AdoptedModels& models, BlockWatch& blocks);

  // The operators of a forward pass, while it wants them.
  bool wants_calls() const { return first_batch_.wants_calls() || losses_; }
  void begin(const OperatorCall& call, const AdoptedModels& models) {
    if (first_batch_.wants_calls()) first_batch_.read(call, models);
  }
  void end(std::span<const c10::IValue> results) {
    if (losses_) losses_->note_results(results);
  }
  // Throws cox::Error where losses are averaged and the pass starts from none.
  void backward_begins(const BackwardPass& pass) {
    if (losses_) losses_->find(pass);
  }
  bool averages_losses() const { return losses_.has_value(); }

  // Averages what a backward pass added to gradients. Collective; waits by polling; throws
  // cox::Error.
  void average(StepScope& step, const AdoptedModels& models);
  // The loop asks whether it is to stop, so it need not be ended.
  void loop_asks() { loop_asks_ = true; }
  bool loop_is_asking() const { return loop_asks_; }
  // The loop is saved before it ends, so closing a step does not end it.
  void loop_is_kept() { loop_is_kept_ = true; }
  // Agrees on the step with all ranks; returns whether the loop is to be ended: the ranks were
  // asked to stop, and it neither asks nor is kept. Collective.
  enum class Stop : bool { no, yes };
  Stop close(StepScope& step);
  // The loop is over, and its last step is about to close.
  void settle() {
    if (weights_) (*weights_)->settle();
  }

 private:
  // Whether there are other ranks to average with.
  bool exchanges() const { return ranks_ && session_.world_size() > 1; }

  Session& session_;
  std::optional<ManualParallel> ranks_;  // none where the loop is watched only
  FirstBatch first_batch_;
  std::optional<LossMean> losses_;             // where losses are averaged
  std::optional<Added<WeightCheck>> weights_;  // once the first step begins
  bool has_new_models_ = false;                // whose weights are not among them
  bool loop_asks_ = false;
  bool loop_is_kept_ = false;
};

}  // namespace cox::detail
