// ManualParallel is data parallel training for loops that are not one model and one optimizer:
// generators and their critics, actors and learners, models that grow. Several sets of parameters
// in one session, each averaged when the program says so:
//
//   cox::ManualParallel ranks(session);
//   ranks.sync_parameters(critic->parameters());    // rank 0's values on all ranks
//   for (...) {
//     auto step = session.step();
//     ranks.backward(step, critic_loss);
//     if (ranks.all_reduce_gradients(step, critic->parameters()).finite) critic_optimizer.step();
//     critic_optimizer.zero_grad();
//     ...                                           // another set, any number of times
//     if (ranks.close(step).stop) break;            // once a step: stop and plan, agreed by all
//   }
//
// Use it instead of a Reducer or Trainer, and make it before the session's first step. Every call
// but backward() is collective: all ranks make the same calls with the same tensors (number,
// shapes, types, order). A rank that calls something else gets the same cox::Error as all others,
// and it names that rank. Sums are taken in ascending ranks and divided once: equal bits on all
// ranks and in every run with the same layout. Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "coxswain/reducer.h"
#include "coxswain/session.h"

namespace cox {

namespace detail {
class AdoptedAveraging;
struct ReductionMaker;
}  // namespace detail

struct GradientAverage {
  double weight = 0;         // sum over ranks; 0 = nobody had samples, there are no gradients
  double gradient_norm = 0;  // L2 over these parameters, after averaging
  bool finite = true;        // false: skip the update (all ranks see the same)
};

class ManualParallel {
 public:
  // Collective. Throws cox::Error after the session's first step, and with
  // reduction.reproducible=on, which needs a Reducer or Trainer.
  explicit ManualParallel(Session& session);
  // The same, with one model whose blocks are found and followed as a Reducer's.
  ManualParallel(Session& session, torch::nn::Module& followed);
  ManualParallel(const ManualParallel&) = delete;
  ManualParallel& operator=(const ManualParallel&) = delete;
  ~ManualParallel();

  // Overwrites the tensors in place with those of rank 0, now. Call it before the first step, after
  // a part was added to a model, or for buffers whenever ranks should agree. Blocks by polling.
  void sync_parameters(const std::vector<at::Tensor>& parameters);
  void sync_buffers(const std::vector<at::Tensor>& buffers);

  // Runs loss.backward(), with the loss scale in the gradients while blocks run in fp16;
  // all_reduce_gradients() takes it out. Gradients add up until then, as always. Local.
  void backward(StepScope& step, const at::Tensor& loss);

  // Replaces .grad of every parameter by its average over ranks: the plain mean, where a rank
  // without a gradient counts as zero; or weighted by what each rank's gradient stands for
  // (samples, tokens): sum(weight x gradient) / sum(weight). A rank of weight 0 only takes part.
  // Parameters without a gradient on all ranks keep none. The first call of a set of parameters
  // takes longer; the newest 16 sets are remembered. REQUIRES: weight is finite and >= 0.
  GradientAverage all_reduce_gradients(StepScope& step, const std::vector<at::Tensor>& parameters);
  GradientAverage all_reduce_gradients(StepScope& step, const std::vector<at::Tensor>& parameters,
                                       double weight);

  // Closes the step; every rank calls it once at the end of every step. Agrees on stopping, applies
  // plans and moves the loss scale. The outcome's loss is the mean of what step.loss() was told,
  // weighted, over all ranks; its norm is over all averages of the step; `finite` if all of them
  // and the losses were.
  ReductionOutcome close(StepScope& step);

 private:
  friend class detail::AdoptedAveraging;
  // As all_reduce_gradients() where the outcome is not looked at: waits for no device. close()
  // tells the norm when it has come by itself, perhaps with the next step.
  void average_unseen(StepScope& step, const std::vector<at::Tensor>& parameters);
  // Averages in another way from now on.
  void average_by(const detail::ReductionMaker& maker);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cox
