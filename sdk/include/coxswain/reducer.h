// Reducer averages gradients over ranks, weighted by the samples or tokens of each rank's loss, and
// carries the step's ballot. The second depth of use (docs/watching.md), in a loop of your own:
//
//   cox::Reducer reducer(session, *model);
//   auto step = session.step();
//   reducer.backward(step, loss, batch_size);               // the last micro-batch of the step
//   cox::ReductionOutcome outcome = reducer.average(step);  // collective
//   if (outcome.finite) optimizer.step();
//   optimizer.zero_grad(); if (outcome.stop) break;         // a rank was asked to stop
//
// The result in .grad is sum(weight x gradient of the mean loss) / sum(weight) over all ranks and
// micro-batches, added in ascending rank order and divided once. The bits are equal on all ranks,
// and in two runs with the same layout. With reduction.reproducible=on the bits depend neither on
// the number of ranks nor on the rank that computed a micro-batch (docs/data-parallel.md). Buckets
// of gradients travel while the backward pass of the last micro-batch is still running. Thread
// rule: the training thread.
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
  double loss = 0;    // weighted mean; NaN if a rank's loss was not finite or no rank had samples
  double weight = 0;  // sum over ranks; 0 = no rank had samples
  std::uint64_t samples = 0;
  double gradient_norm = 0;  // L2 over all parameters, after averaging
  // False: skip the update; equal on all ranks. A loss or gradient was not finite, no rank had
  // samples, or the step is to be repeated.
  bool finite = true;
  bool stop = false;  // a rank was asked to stop: save and leave after this step
  // True: drop the gradients in .grad and compute the same micro-batches again in a new step.
  // Either a rank abandoned the step, or the sums of reproducible mode did not fit. The latter
  // happens in the first step and after a sudden growth of gradients.
  bool repeat = false;
};

// MicroBatch marks the last micro-batch of a rank's step. Gradients of the last micro-batch are
// sent as they are computed; gradients of earlier ones only accumulate.
enum class MicroBatch : std::uint8_t { more, last };

// BucketReport is one bucket of gradients in the last averaged step. Seconds count from the
// beginning of the step's last backward pass. On a rank without a backward pass, seconds count from
// the call of backward() with weight 0 or of average().
struct BucketReport {
  std::int64_t bytes = 0;
  double started_seconds = 0;
  double done_seconds = 0;    // when this rank had the bucket's sum
  double worked_seconds = 0;  // this rank's own adding and copying
};
struct ReductionReport {
  std::vector<BucketReport> buckets;  // in the order in which they are started
  double backward_seconds = 0;        // the last micro-batch's; 0 on a rank without one
  double exposed_seconds = 0;         // from the end of backward until this rank had all sums
};

class Reducer {
 public:
  // Averages a model's gradients. Also finds the model's blocks and follows them within the
  // session's steps, as Session::adopt() does: costs are measured, and plans can steer the blocks.
  // The model must outlive the session or be given to Session::detach().
  Reducer(Session& session, torch::nn::Module& model);
  // Averages the gradients of a list of parameters; no blocks are known. Both constructors are
  // collective, and run before the session's first step. Parameters and buffers are broadcast from
  // rank 0, so that all ranks start equal. Buffers that a step changes (running statistics) are
  // kept equal: all ranks get the values of the lowest rank that had changes. A parameter that is
  // listed twice counts once. Throws cox::Error if parameters differ between ranks (count, shape,
  // type, order).
  Reducer(Session& session, std::vector<at::Tensor> parameters,
          std::vector<at::Tensor> buffers = {});
  Reducer(Reducer&&) noexcept;
  Reducer& operator=(Reducer&&) = delete;
  ~Reducer();

  // Runs autograd so that `loss` (a mean over `weight` samples or tokens) counts `weight` times in
  // the average. Weight 0 only reports the end of the last micro-batch. Between the last
  // micro-batch and average() further calls are an error, and .grad is in transfer: do not read or
  // write .grad. In fp16 .grad carries the loss scale until average() removes the scale.
  // Reproducible mode rounds weights to steps of 2^-20. Communicates without waiting. Throws
  // cox::Error for a weight that is negative or not finite.
  void backward(StepScope& step, const at::Tensor& loss, double weight,
                MicroBatch which = MicroBatch::last);

  // Adds a loss without a backward pass (an evaluation) to the averaged loss, not to the gradients.
  // Adds nothing with weight 0, whatever the loss. average() still averages the contents of .grad:
  // drop an earlier step's gradients first. Local.
  void observe(StepScope& step, double loss, double weight);

  // Reports that this rank cannot finish the step, for example because backward() ran out of
  // memory. average() then asks all ranks to repeat the step (ReductionOutcome::repeat). Call
  // abandon() after the last micro-batch that this rank tries. Local.
  void abandon();

  // Makes .grad the average over ranks, once a step. Waits for the buckets. A rank that gave no
  // last micro-batch (a rank without samples) contributes the contents of .grad. A parameter
  // without a gradient on every rank keeps none. Collective; waits by polling.
  //
  // Throws cox::Error if the transport fails or a rank has left, because gradients without an
  // average must not be trained on. Also throws if .grad is not zero in a step without backward()
  // and observe(). Such a gradient belongs to no known loss, even if an earlier step left it.
  ReductionOutcome average(StepScope& step);

  // Takes part in the other ranks' steps with weight zero until no rank has steps left. For ranks
  // with different numbers of steps: call join() after this rank's last step. `update` is called
  // after each average and does the work of the other ranks' loops, so that this rank's model stays
  // equal. Collective with the others' average() and join().
  void join(const std::function<void(StepScope&, const ReductionOutcome&)>& update);

  // Returns the state with which a resumed run continues with the same bits and the same buckets.
  // The state has the order and sizes of buckets and the places of exact sums. Equal on all ranks.
  // A Trainer saves the state by itself.
  std::vector<NamedTensor> state() const;
  // Loads a list that state() returned, before the first step. Call load_state() on all ranks with
  // the same list. Returns invalid_argument if the list is damaged or belongs to another model.
  Status load_state(std::span<const NamedTensor> state);

  ReductionReport last_reduction() const;
  const char* path() const;  // "shared memory", "mpi", ...; "none" for a job of one rank

 private:
  friend class Trainer;
  Reducer(Session& session, std::vector<NamedTensor> parameters, std::vector<at::Tensor> buffers);
  // Returns how ranks divide parameters and state, or null if every rank holds all of both.
  detail::Sharding* sharding() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cox
