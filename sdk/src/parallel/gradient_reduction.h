// GradientReduction: how the gradients of one step become their average on all ranks. The reducer
// tells it of micro-batches and of gradients that are complete; it puts them where they are summed
// up, and hands back what came out. make_reduction() chooses between four ways:
//
// - OverlappedReduction is the ordinary one. In the backward pass of the last micro-batch each
//   finished gradient is copied to its bucket and .grad becomes a view of it. Sums are taken in
//   fp32, in ascending ranks, and divided once: equal bits on all ranks and in all runs with the
//   same layout of ranks.
// - ExactReduction is that of reproducible mode. The gradient of every micro-batch is deposited in
//   fp64 accumulators that add without error (exact_sum.h), so the average has the same bits for
//   any number of ranks, any shares in whole micro-batches and any order of arrival. A magnitude
//   out of its bin makes merge() ask for the step to be repeated; the bins then fit.
// - GatheredReduction is the ordinary way of gradients on a device (device_reduction.cc): they are
//   summed in buckets there, over NCCL or through host memory.
// - LocalReduction is that of a job of one rank in the ordinary way: nothing is copied.
//
// The first two, and the third over NCCL, start a bucket as soon as its gradients are all there,
// while backward goes on with earlier layers, and move it on at every gradient that follows.
// Buckets start in their order, whatever order this rank finishes them in; what is left starts at
// the end of backward. Thread rule: the thread that trains, but for ready(), which is called by the
// thread that runs a part of backward while the former waits for it. Only over NCCL that may be
// another one; the other ways take its gradients at the end of backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/settings/parallel.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/exchange/bucket_exchange.h"
#include "coordinator/transport/wait.h"
#include "coxswain/reducer.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/device_link.h"
#include "sdk/src/parallel/exact_sum.h"
#include "sdk/src/parallel/gradient_layout.h"

namespace cox::detail {

// StepExchange passes between ranks what a step needs: the gradient buckets, then the bookkeeping
// behind them (how many ranks have a gradient for each parameter, largest magnitudes) and the
// step's ballot. It is BucketExchange in tensors, with errors as cox::Error, because an average
// that did not happen must not be trained on. Tensors keep the memory that they lie in.
class StepExchange {
 public:
  struct Extent {
    std::size_t counts = 0;      // numbers to be added up
    std::size_t magnitudes = 0;  // numbers whose maximum is wanted
  };

  // Collective. Throws cox::Error.
  StepExchange(transport::Communicator& ranks, const GradientLayout& layout, const Extent& extent,
               const transport::ExchangeOptions& options);

  // The gradients' buckets: 1-D, on the CPU. This rank's part until start(), the sum after merge().
  const std::vector<at::Tensor>& flats() const { return flats_; }
  std::span<float> counts() { return counts_; }
  std::span<double> magnitudes() { return magnitudes_; }

  // Starts a bucket. REQUIRES: buckets are started in ascending order, each once between two calls
  // of merge().
  void start(std::size_t bucket);
  // Does some of the work for buckets that are in flight. Never waits.
  void advance();

  // Starts what follows the gradients and waits for everything. Collective. REQUIRES: all gradient
  // buckets were started.
  StepBallot merge(const StepBallot& mine, const std::function<void()>& pump);

  // Returns the buckets in the ranks' memory, the gradients' first.
  transport::BucketExchange& host() const { return *exchange_; }

 private:
  std::unique_ptr<transport::BucketExchange> exchange_;
  std::vector<at::Tensor> flats_;
  std::span<float> counts_;
  std::span<double> magnitudes_;
  std::span<std::byte> ballot_;
  std::size_t bookkeeping_ = 0;  // buckets behind the gradients
};

// MicroBatchFacts tell what one micro-batch's gradients are, relative to those of its mean loss.
struct MicroBatchFacts {
  double weight = 1;      // what its mean loss stands for
  double unit = 1;        // .grad holds weight / unit times the gradient ...
  double loss_scale = 1;  // ... times this
  MicroBatch which = MicroBatch::last;
};

// GradientHabits are what reductions learn of a model's gradients, whatever the layout of buckets:
// a reduction goes on with what the one before it learnt.
struct GradientHabits {
  // Reproducible mode, one a parameter: the bins of the step to come; equal on all ranks.
  std::vector<ExactBin> bins;
  // The order in which gradients became ready in the last micro-batch of the step just merged. It
  // is shorter than the list of parameters where some got none, and empty where nothing is
  // exchanged.
  std::vector<std::uint32_t> order;
  // Gradients went on after they were complete, because this model's backward pass runs others
  // inside. Their buckets are filled at its end, from the next start on.
  bool come_again = false;
};

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  // Returns the factor of this micro-batch's loss in its backward pass.
  virtual double factor(const MicroBatchFacts& facts) const {
    return facts.weight / facts.unit * facts.loss_scale;
  }
  // begin() and end() enclose each backward pass; autograd's hooks call ready() between them.
  virtual void begin(const MicroBatchFacts& facts) = 0;
  virtual void ready(std::size_t) {}
  virtual void end() {}

  // Sends whatever has not been sent. Does not wait.
  virtual void flush() {}
  // Called when the training thread is about to wait for its device: hands over what was sent, as
  // long as the device is busy anyway.
  virtual void send_off() {}
  // Adds what it knows to `mine` and merges the ballots of all ranks. Collective; waits.
  virtual StepBallot merge(StepBallot mine, const std::function<void()>& pump) = 0;
  // Makes .grad of every parameter the average of `total` weight (under `loss_scale`), or undefined
  // where no rank had one. Returns its L2 norm. REQUIRES: merge() came before, and arguments are
  // equal on all ranks.
  virtual double hand_back(double total, double loss_scale) = 0;
  // The same for a caller that does not look at the norm: nobody waits for a device.
  virtual LateNorm hand_back_unseen(double total, double loss_scale) {
    return LateNorm(hand_back(total, loss_scale));
  }
  // Returns how many values of this rank's own gradients were not finite, by parameter, in the step
  // just merged.
  virtual const std::vector<std::int64_t>& nonfinite() const = 0;

  virtual StepExchange* exchange() { return nullptr; }
  // Says that this rank takes no further part, so that the others do not wait for it. Local.
  virtual void leave(const std::string& why) {
    if (exchange() != nullptr) exchange()->host().leave(why);
  }
  // Returns the gradients' buckets in the order in which they were started.
  struct SentBucket {
    std::int64_t bytes = 0;
    transport::BucketTimes times;  // of the step just merged
  };
  virtual std::vector<SentBucket> sent();
  // Returns how gradients travel, as BucketExchange::path().
  virtual const char* path() { return exchange() == nullptr ? "none" : exchange()->host().path(); }
  // Returns whether, in the last micro-batch, what autograd allocated for this gradient is free
  // again as soon as the gradient is ready.
  virtual bool moves_when_ready(std::size_t) const { return false; }
};

class LocalReduction final : public GradientReduction {
 public:
  explicit LocalReduction(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  void begin(const MicroBatchFacts& facts) override { unit_ = facts.unit; }
  StepBallot merge(StepBallot mine, const std::function<void()>&) override { return mine; }
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override;

 private:
  const std::vector<at::Tensor>& parameters_;
  double unit_ = 0;  // 0 = no backward pass in this step
  mutable std::vector<std::int64_t> nonfinite_;
};

// ReductionSetup says which ranks average, and how. All of it must outlive the reduction.
struct ReductionSetup {
  transport::Communicator& ranks;
  const transport::WaitPolicy& wait;
  const ReductionConfig& config;
  DeviceLink& devices;
  Seconds nccl_limit;  // for NCCL to sum the gradients of a step that all ranks have given it
  // Called before a step's first sum over NCCL: returns when nothing else of this rank's is on its
  // way to NCCL's streams. May be empty.
  std::function<void()> let_others_first = {};
};

// What several ways share. Adds a rank's vote: whether values of its own gradients, counted by
// parameter, were not finite.
void vote_on_overflow(std::span<const std::int64_t> nonfinite, StepBallot& mine);
// Writes a gradient, real or complex, times `unit` to its 1-D place on the CPU. Returns how many of
// the values are not finite there.
std::int64_t put_in_place(const at::Tensor& gradient, at::Tensor place, double unit);

// Returns how many real numbers a gradient of this parameter has.
std::int64_t numbers_in(const at::Tensor& parameter);

// BucketViews are the places of parameters in flat buckets, which .grad may become.
struct BucketViews {
  // `flats`: 1-D, one a bucket of the layout.
  BucketViews(const std::vector<at::Tensor>& parameters, const GradientLayout& layout,
              const std::vector<at::Tensor>& flats);

  // Returns whether .grad may be the place itself: it has the parameter's type and device.
  bool fits(std::size_t parameter) const;
  // Returns what .grad becomes: the place, or else a copy as the parameter has it.
  at::Tensor gradient(std::size_t parameter) const;
  // Copies a gradient of an earlier step that the program still holds, or a view of it, to memory
  // of its own, before the place gets other values. REQUIRES: places are on the CPU.
  void let_go(std::size_t parameter);

  const std::vector<at::Tensor>& parameters;
  std::vector<at::Tensor> places;  // 1-D; undefined for a parameter that has none
  std::vector<at::Tensor> shaped;  // the same in the parameters' shapes, each a storage of its own

 private:
  void shape(std::size_t parameter);
};

// DividedNorm divides sums on the CPU by one number, and takes the norm of all in the order of the
// calls.
class DividedNorm {
 public:
  explicit DividedNorm(double divisor) : divisor_(divisor) {}
  // Divides the 1-D `place`.
  void add(at::Tensor place);
  double norm() const;

 private:
  const double divisor_;
  double squares_ = 0;
  std::vector<at::Tensor> others_;  // whose squares are still to be taken
};

// Tells whether a gradient was added to, or replaced, since: autograd calls a parameter's hook also
// where it has nothing new.
struct GradientMark {
  const void* tensor = nullptr;
  std::uint32_t version = 0;
  friend bool operator==(const GradientMark&, const GradientMark&) = default;
};
GradientMark mark_of(const at::Tensor& gradient);

// A parameter as a layout of buckets depends on it. A program may change it: Module::to(),
// set_data().
struct ParameterForm {
  std::vector<std::int64_t> sizes;
  at::ScalarType type;
  c10::Device device;

  bool fits(const at::Tensor& parameter) const {
    return parameter.scalar_type() == type && parameter.device() == device &&
           parameter.sizes() == sizes;
  }
};
std::vector<ParameterForm> forms_of(const std::vector<at::Tensor>& parameters);
// Without allocation, for every step.
bool have_forms(const std::vector<at::Tensor>& parameters, const std::vector<ParameterForm>& forms);

// Returns invalid_argument, naming the first by its number, where a parameter that requires a
// gradient is of a type that no mean exists of: neither real nor complex floating point, or
// quantised.
Status check_types(const std::vector<at::Tensor>& parameters);

// Returns whether each parameter requires a gradient now.
std::vector<bool> required_of(const std::vector<at::Tensor>& parameters);

// Returns what the gradients take in buckets: fp64 in reproducible mode and for parameters of 64
// bits a number, fp32 for all others; two numbers for each element of a complex one. `needed`: one
// a parameter, whether it has a place.
std::vector<GradientShape> shapes_of(const std::vector<at::Tensor>& parameters,
                                     const std::vector<bool>& needed, bool reproducible);

// Makes the way of averaging that the settings ask for, with its layout and its exchange.
// `parameters` and `habits` must outlive it; `needed`: one a parameter, equal on all ranks, false
// for those that never get a gradient. Collective. Throws cox::Error, on all ranks for parameters
// that reproducible mode cannot sum (fp64, or not on the CPU).
std::unique_ptr<GradientReduction> make_reduction(const ReductionSetup& setup,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  GradientHabits& habits);

// ReductionMaker makes another way of averaging than make_reduction() chooses.
struct ReductionMaker {
  std::function<std::unique_ptr<GradientReduction>(const std::vector<at::Tensor>& parameters,
                                                   const std::vector<bool>& needed,
                                                   GradientHabits& habits)>
      make;
};

// Returns the one device of all parameters that have a place in a bucket; the CPU where there are
// several.
c10::Device common_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<bool>& needed);

// SharedBuckets are what a reduction with several ranks is made of. `exchange` has the buckets of
// `layout`, or none where they go over NCCL. `parameters` and `habits` outlive the reduction.
struct SharedBuckets {
  const std::vector<at::Tensor>& parameters;
  GradientLayout layout;
  std::unique_ptr<StepExchange> exchange;
  GradientHabits& habits;
};

// Makes the way of gradients on a device; over NCCL where setup.devices is open. Collective. Throws
// cox::Error. REQUIRES: common_device() of the parameters is no CPU.
std::unique_ptr<GradientReduction> make_device_reduction(const ReductionSetup& setup,
                                                         SharedBuckets buckets);

}  // namespace cox::detail
