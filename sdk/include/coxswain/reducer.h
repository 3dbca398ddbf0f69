// Reducer averages gradients over ranks, weighted by what each rank says its loss stands for, and
// carries the step's ballot. Second depth of use, in a loop of your own:
//
//   cox::Reducer reducer(session, *model);
//   auto step = session.step();
//   reducer.backward(step, loss, batch_size);               // the last micro-batch of the step
//   cox::ReductionOutcome outcome = reducer.average(step);  // collective
//   if (outcome.finite) optimizer.step();
//   optimizer.zero_grad(); if (outcome.stop) break;         // somebody asked the job to stop
//
// The gradient that remains in .grad is sum(weight x gradient of the mean loss) / sum(weight) over
// all ranks and micro-batches: added in ascending rank order, divided once. Equal bits on all
// ranks, and in two runs with the same layout. Gradients travel while the backward pass of the last
// micro-batch is still running, in buckets. With reduction.reproducible=on the bits do not depend
// on the number of ranks, either, nor on who computed which micro-batch (docs/data-parallel.md).
// Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coxswain/named_tensor.h"
#include "coxswain/session.h"

namespace cox {

namespace detail {
class Sharding;
}

struct ReductionOutcome {
  double loss = 0;    // weighted mean; NaN when a rank's was not finite, or nobody had samples
  double weight = 0;  // sum over ranks; 0 = nobody had samples
  std::uint64_t samples = 0;
  double gradient_norm = 0;  // L2 over all parameters, after averaging
  // False: skip the update (all ranks see the same). A loss or gradient was not finite, nobody had
  // samples, or the step is to be repeated.
  bool finite = true;
  bool stop = false;  // somebody was asked to stop: save and leave after this step
  // Reproducible mode, now and then (the first step, a sudden growth of gradients): the sums did
  // not fit. Or a rank abandoned the step. There are no gradients to use; drop what .grad holds and
  // compute the same micro-batches again in a new step.
  bool repeat = false;
};

// MicroBatch says whether this is the last micro-batch of this rank's step. The gradients of the
// last one are sent as they are computed; those of the others only accumulate.
enum class MicroBatch : std::uint8_t { more, last };

// BucketReport is one bucket of gradients in the last averaged step. Seconds count from the
// beginning of the step's last backward pass; on a rank without one, from its call with weight 0 or
// of average().
struct BucketReport {
  std::int64_t bytes = 0;
  double started_seconds = 0;
  double done_seconds = 0;    // seen done by this rank
  double worked_seconds = 0;  // this rank's own adding and copying
};
struct ReductionReport {
  std::vector<BucketReport> buckets;  // in the order in which they are started
  double backward_seconds = 0;        // of the last micro-batch; 0 on a rank without one
  double exposed_seconds = 0;         // from its end until all buckets were done
};

class Reducer {
 public:
  // Averages a model's gradients, and finds its blocks, as Session::adopt() would: they are
  // followed within the session's steps, so that their costs are measured and plans can steer them.
  // The model must outlive the session or be given to Session::detach().
  Reducer(Session& session, torch::nn::Module& model);
  // Averages these gradients; no blocks are known. Both are collective, and made before the
  // session's first step. They broadcast parameters and buffers from rank 0, so that all ranks
  // start equal. Buffers that a step changes (running statistics) are kept equal: those of the
  // lowest rank that had changes. A parameter that is listed twice counts once. Throw cox::Error
  // when ranks have other parameters (count, shape, type, order).
  Reducer(Session& session, std::vector<at::Tensor> parameters,
          std::vector<at::Tensor> buffers = {});
  Reducer(Reducer&&) noexcept;
  Reducer& operator=(Reducer&&) = delete;
  ~Reducer();

  // Runs autograd so that `loss` (a mean over `weight` samples or tokens) counts `weight` times in
  // the average. Weight 0 only says that this was the last micro-batch. Once a step's last one was
  // given, more are an error until average(), and .grad is under way: neither read nor write it. In
  // fp16 .grad carries the loss scale until average() takes it out. Reproducible mode takes weights
  // in steps of 2^-20. Communicates without waiting. Throws cox::Error for a weight that is
  // negative or not finite.
  void backward(StepScope& step, const at::Tensor& loss, double weight,
                MicroBatch which = MicroBatch::last);

  // Adds a loss without a backward pass (an evaluation) to the averaged loss, not to the gradients.
  // With weight 0 it adds nothing, whatever the loss. average() still averages what .grad holds:
  // drop an earlier step's gradients first. Local.
  void observe(StepScope& step, double loss, double weight);

  // This rank cannot finish the step: its backward() threw for want of memory, say. average() then
  // asks all ranks to repeat it (ReductionOutcome::repeat). Call it after the last micro-batch that
  // this rank tries. Local.
  void abandon();

  // Makes .grad the average over ranks, once a step: waits for the buckets, or sends what .grad
  // holds where no last micro-batch was given (a rank without samples). Parameters that got no
  // gradient on any rank keep none. Collective; waits by polling. Throws cox::Error when the
  // transport fails or a rank has left, because an average that did not happen must not be trained
  // on. Throws it too for a .grad that is not zero in a step without backward() and observe(), also
  // one left from an earlier step, because nobody knows whose gradient it is.
  ReductionOutcome average(StepScope& step);

  // Takes part in the other ranks' steps with weight zero until no rank has any left. For ranks
  // with different numbers of steps: call it after this rank's last one. `update` is called after
  // each of their averages to do what the loop does there, so that this rank's model stays equal.
  // Collective with the others' average() and join().
  void join(const std::function<void(StepScope&, const ReductionOutcome&)>& update);

  // Returns what a resumed run needs to go on with the same bits and the same buckets: order and
  // sizes of buckets, places of exact sums. It is equal on all ranks. A Trainer saves it by itself.
  std::vector<NamedTensor> state() const;
  // Takes over such a list; call it before the first step. Collective. Returns invalid_argument
  // when it is another model's or damaged.
  Status load_state(std::span<const NamedTensor> state);

  ReductionReport last_reduction() const;
  const char* path() const;  // "shared memory", "mpi", ...; "none" for a job of one rank

 private:
  friend class Trainer;
  Reducer(Session& session, std::vector<NamedTensor> parameters, std::vector<at::Tensor> buffers);
  // Returns how ranks divide what they hold, null where each holds all.
  detail::Sharding* sharding() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cox
