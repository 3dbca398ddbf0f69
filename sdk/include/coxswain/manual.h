// ManualParallel is data parallel training for loops that are not one model and one optimizer:
// generators and their critics, actors and learners, models that grow. One session averages several
// sets of parameters, each when the program asks:
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
// Use ManualParallel instead of a Reducer or Trainer, and make it before the session's first step.
// Every call but backward() is collective: all ranks make the same calls with the same tensors
// (number, shapes, types, order). If a rank makes another call, all ranks get the same cox::Error,
// which names the rank. Sums are added in ascending rank order and divided once: equal bits on all
// ranks, and in every run with the same layout. Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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
  double weight = 0;         // sum over ranks; 1 a rank for a plain mean; 0 = no gradients
  double gradient_norm = 0;  // L2 over the set's parameters, after averaging
  bool finite = true;        // false: skip the update; equal on all ranks
};

class ManualParallel {
 public:
  // Collective. Throws cox::Error after the session's first step, and with
  // reduction.reproducible=on, which needs a Reducer or Trainer.
  explicit ManualParallel(Session& session);
  // Like above; also finds and follows the blocks of one model, as a Reducer does.
  ManualParallel(Session& session, torch::nn::Module& followed);
  ManualParallel(const ManualParallel&) = delete;
  ManualParallel& operator=(const ManualParallel&) = delete;
  ~ManualParallel();

  // Overwrites the tensors in place with rank 0's values. Call the functions before the first step
  // and after a part was added to a model; for buffers, whenever ranks should agree. Blocks by
  // polling.
  void sync_parameters(const std::vector<at::Tensor>& parameters);
  void sync_buffers(const std::vector<at::Tensor>& buffers);

  // Runs loss.backward(). While blocks run in fp16 the gradients carry the loss scale until
  // all_reduce_gradients(). Gradients of several calls add up, as always in torch. Local.
  void backward(StepScope& step, const at::Tensor& loss);

  // Replaces .grad of every parameter by the average over ranks. Without `weight` the average is
  // the plain mean, in which a rank without a gradient counts as zero. With `weight`, the number of
  // samples or tokens behind this rank's gradient, the average is sum(weight x gradient) /
  // sum(weight). A rank of weight 0 only takes part. Parameters without a gradient on all ranks
  // keep none. The first call for a set of parameters takes longer; the newest 16 sets are
  // remembered. REQUIRES: weight is finite and >= 0.
  GradientAverage all_reduce_gradients(StepScope& step, const std::vector<at::Tensor>& parameters);
  GradientAverage all_reduce_gradients(StepScope& step, const std::vector<at::Tensor>& parameters,
                                       double weight);

  // Closes the step: agrees on stopping, applies plans and moves the loss scale. Every rank calls
  // close() once at the end of every step. The outcome's loss is the weighted mean over all ranks
  // of the values given to step.loss(). The norm covers all averages of the step. `finite` is true
  // if all averages and losses are finite.
  ReductionOutcome close(StepScope& step);

 private:
  friend class detail::AdoptedAveraging;
  // Like all_reduce_gradients() for callers that ignore the outcome: does not wait for a device.
  // close() reports the norm as soon as the device has delivered it, perhaps with the next step.
  // `place` numbers the model among those that the ranks average; ranks compare it.
  void average_unseen(StepScope& step, const std::vector<at::Tensor>& parameters,
                      std::uint64_t place);
  // Switches to another way to average, from now on.
  void average_by(const detail::ReductionMaker& maker);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cox
