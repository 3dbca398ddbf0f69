// Reducer: averages gradients over ranks, weighted by what each rank says its loss stands for, and
// carries the step's ballot. Second depth of use, in a loop of one's own:
//
//   cox::Reducer reducer(session, model->parameters());
//   auto step = session.step();
//   reducer.backward(step, loss, batch_size);       // once per micro-batch
//   cox::ReductionOutcome outcome = reducer.average(step);  // collective
//   if (outcome.finite) optimizer.step();
//
// The gradient that remains in .grad is sum(weight x gradient of the mean loss) / sum(weight) over
// all ranks and micro-batches: added in ascending rank order, divided once. Equal bits on all
// ranks, and in two runs with the same layout. Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "coxswain/session.h"

namespace cox {

struct ReductionOutcome {
  double loss = 0;    // weighted mean over ranks; NaN when a rank's was not finite
  double weight = 0;  // sum over ranks; 0 = nobody had samples
  std::uint64_t samples = 0;
  double gradient_norm = 0;  // L2 over all parameters, after averaging
  bool finite = true;        // false: skip the update (all ranks see the same)
  bool stop = false;         // somebody was asked to stop: save and leave after this step
};

class Reducer {
 public:
  // Collective. Throws cox::Error when ranks have other parameters (count, shape, type, order).
  // Broadcasts parameters and buffers from rank 0, so that all ranks start equal.
  Reducer(Session& session, std::vector<at::Tensor> parameters,
          std::vector<at::Tensor> buffers = {});
  Reducer(Reducer&&) noexcept;
  Reducer& operator=(Reducer&&) = delete;
  ~Reducer();

  // Runs autograd so that `loss` (a mean over `weight` samples or tokens) counts `weight` times in
  // the average. Weight 0 does nothing. Local: no communication. While a block runs in fp16, .grad
  // carries the loss scale from here until average() takes it out.
  void backward(StepScope& step, const at::Tensor& loss, double weight);

  // A loss without a backward pass (an evaluation): enters the averaged loss, not the gradients.
  // average() still averages what .grad holds: drop an earlier step's gradients first.
  void observe(StepScope& step, double loss, double weight);

  // Collective: averages what backward() left in .grad, in flat buckets. Parameters that got no
  // gradient on any rank keep none. Waits by polling. A failing transport throws cox::Error: an
  // average that did not happen must not be trained on.
  ReductionOutcome average(StepScope& step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cox
