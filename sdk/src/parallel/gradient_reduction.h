// GradientReduction averages the gradients of one step on all ranks. The reducer reports
// micro-batches and complete gradients; the reduction sums them up and returns the averages.
// make_reduction() chooses between four ways.
//
// Thread rule: the training thread, except for ready(). The thread that runs a part of backward
// calls ready() while the training thread waits. Only over NCCL may that be another thread; the
// other ways read its gradients at the end of backward.
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

// StepExchange passes a step's data between ranks: the gradient buckets, then the bookkeeping (how
// many ranks have a gradient for each parameter, largest magnitudes) and the step's ballot.
// StepExchange wraps BucketExchange in tensors, and throws errors as cox::Error, because a failed
// average must not be trained on. Tensors share ownership of their memory.
class StepExchange {
 public:
  struct Extent {
    std::size_t counts = 0;      // numbers to sum
    std::size_t magnitudes = 0;  // numbers to maximise
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
  // Does some of the work for buckets in flight. Never waits.
  void advance();

  // Starts the bookkeeping and waits for everything. Collective. REQUIRES: all gradient buckets
  // were started.
  StepBallot merge(const StepBallot& mine, const std::function<void()>& pump);

  // Returns the buckets in the ranks' memory, the gradients' first.
  transport::BucketExchange& host() const { return *exchange_; }

 private:
  std::unique_ptr<transport::BucketExchange> exchange_;
  std::vector<at::Tensor> flats_;
  std::span<float> counts_;
  std::span<double> magnitudes_;
  std::span<std::byte> ballot_;
  std::size_t bookkeeping_ = 0;  // bookkeeping buckets, after the gradients'
};

// MicroBatchFacts relates one micro-batch's gradients to those of its mean loss.
struct MicroBatchFacts {
  double weight = 1;      // weight of its mean loss
  double unit = 1;        // .grad holds weight / unit times the gradient ...
  double loss_scale = 1;  // ... times the loss scale
  MicroBatch which = MicroBatch::last;
};

// GradientHabits stores facts about a model's gradients that do not depend on the layout of
// buckets. A new reduction continues with its predecessor's habits.
struct GradientHabits {
  // Reproducible mode, one for each parameter: the next step's bins; equal on all ranks.
  std::vector<ExactBin> bins;
  // The order in which gradients became ready in the last micro-batch of the step just merged.
  // Shorter than the list of parameters if some got none. Empty if nothing is exchanged.
  std::vector<std::uint32_t> order;
  // Gradients changed after they were complete, because the model's backward pass runs nested ones.
  // From the next start on, buckets are filled at the end of backward.
  bool come_again = false;
};

// GradientReduction is one of four ways:
//
// - OverlappedReduction is the ordinary way. In the backward pass of the last micro-batch each
//   finished gradient is copied to its bucket, and .grad becomes a view of it. Sums are in fp32, in
//   ascending ranks, and divided once: equal bits on all ranks and in all runs with the same layout
//   of ranks.
// - ExactReduction serves reproducible mode and deposits every micro-batch's gradient in fp64
//   accumulators that add without error (exact_sum.h). So the average has the same bits for any
//   number of ranks, any shares in whole micro-batches and any order of arrival. If a magnitude is
//   outside of its bin, merge() asks to repeat the step, with bins that fit.
// - GatheredReduction is the ordinary way on a device (device_reduction.cc), and sums buckets
//   there, over NCCL or through host memory.
// - LocalReduction is the ordinary way of a job of one rank, and copies nothing.
//
// Ranks that share gradients use SharedReduction instead (sdk/src/shard/shared_gradients.h).
//
// The first two, and the third over NCCL, start a bucket as soon as its gradients are complete,
// while backward continues with earlier layers. Every later gradient advances started buckets.
// Buckets start in their order, whatever the order of completion; the rest start at the end of
// backward.
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

  // Sends all gradients not yet sent. Does not wait.
  virtual void flush() {}
  // Called before the training thread waits for its device. Forwards the sent buckets while the
  // device is busy anyway.
  virtual void send_off() {}
  // Adds this rank's facts to `mine` and merges the ballots of all ranks. Collective; waits.
  virtual StepBallot merge(StepBallot mine, const std::function<void()>& pump) = 0;
  // Sets .grad of every parameter to the average of `total` weight (under `loss_scale`), or to
  // undefined if no rank had a gradient. Returns the L2 norm. REQUIRES: merge() came before, and
  // arguments are equal on all ranks.
  virtual double hand_back(double total, double loss_scale) = 0;
  // The same for a caller that ignores the norm: never waits for a device.
  virtual LateNorm hand_back_unseen(double total, double loss_scale) {
    return LateNorm(hand_back(total, loss_scale));
  }
  // Returns, by parameter, how many values of this rank's own gradients were not finite in the step
  // just merged.
  virtual const std::vector<std::int64_t>& nonfinite() const = 0;

  virtual StepExchange* exchange() { return nullptr; }
  // Announces that this rank takes no further part, so that the others do not wait. Local.
  virtual void leave(const std::string& why) {
    if (exchange() != nullptr) exchange()->host().leave(why);
  }
  // SentBucket describes one bucket; sent() returns them in the order of their starts.
  struct SentBucket {
    std::int64_t bytes = 0;
    transport::BucketTimes times;  // in the step just merged
  };
  virtual std::vector<SentBucket> sent();
  // Returns how gradients travel, as BucketExchange::path().
  virtual const char* path() { return exchange() == nullptr ? "none" : exchange()->host().path(); }
  // Returns whether, in the last micro-batch, autograd's memory for the gradient was free again as
  // soon as the gradient was ready.
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

// ReductionSetup selects the ranks and the way of averaging. All parts outlive the reduction.
struct ReductionSetup {
  transport::Communicator& ranks;
  const transport::WaitPolicy& wait;
  const ReductionConfig& config;
  DeviceLink& devices;
  Seconds nccl_limit;  // for NCCL to sum a step's gradients after all ranks have submitted them
  // Called before a step's first sum over NCCL. Returns when this rank has no other work on its way
  // to NCCL's streams. May be empty.
  std::function<void()> let_others_first = {};
};

// Common to several ways. Adds a rank's vote: whether values of its own gradients, counted by
// parameter, were not finite.
void vote_on_overflow(std::span<const std::int64_t> nonfinite, StepBallot& mine);
// Writes a real or complex gradient times `unit` to its 1-D place on the CPU. Returns the number of
// non-finite values there.
std::int64_t put_in_place(const at::Tensor& gradient, at::Tensor place, double unit);

// Returns how many real numbers a gradient of the parameter has.
std::int64_t numbers_in(const at::Tensor& parameter);

// BucketViews are the places of parameters in flat buckets; .grad may become a place.
struct BucketViews {
  // `flats`: 1-D, one for each bucket of the layout.
  BucketViews(const std::vector<at::Tensor>& parameters, const GradientLayout& layout,
              const std::vector<at::Tensor>& flats);

  // Returns whether .grad may be the place itself, by the parameter's type and device.
  bool fits(std::size_t parameter) const;
  // Returns the new .grad: the place, or else a copy in the parameter's form.
  at::Tensor gradient(std::size_t parameter) const;
  // Copies an earlier step's gradient still held by the program, or a view of it, to new memory
  // before the place gets other values. A place that is .grad stays, because autograd added to it
  // in place. REQUIRES: places are on the CPU.
  void let_go(std::size_t parameter);

  const std::vector<at::Tensor>& parameters;
  std::vector<at::Tensor> places;  // 1-D; undefined for a parameter without a place
  std::vector<at::Tensor> shaped;  // the same in the parameters' shapes, each with its own storage

 private:
  void shape(std::size_t parameter);
};

// DividedNorm divides sums on the CPU by one number, and computes the norm of all in the order of
// the calls.
class DividedNorm {
 public:
  explicit DividedNorm(double divisor) : divisor_(divisor) {}
  // Divides the 1-D `place`.
  void add(at::Tensor place);
  double norm() const;

 private:
  const double divisor_;
  double squares_ = 0;
  std::vector<at::Tensor> others_;  // squares not yet taken
};

// GradientMark detects that a gradient was replaced or added to, because autograd calls a
// parameter's hook even without a new gradient.
struct GradientMark {
  const void* tensor = nullptr;
  std::uint32_t version = 0;
  friend bool operator==(const GradientMark&, const GradientMark&) = default;
};
GradientMark mark_of(const at::Tensor& gradient);

// ParameterForm is the part of a parameter that a layout of buckets depends on. A program may
// change it: Module::to(), set_data().
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
// Allocates nothing, for use in every step.
bool have_forms(const std::vector<at::Tensor>& parameters, const std::vector<ParameterForm>& forms);

// Returns invalid_argument with the first parameter's number if a parameter that requires a
// gradient has a type without a mean: neither real nor complex floating point, or quantised.
Status check_types(const std::vector<at::Tensor>& parameters);

// Returns whether each parameter requires a gradient now.
std::vector<bool> required_of(const std::vector<at::Tensor>& parameters);

// Returns the gradients' shapes in buckets: fp64 in reproducible mode and for parameters of 64 bits
// a number, fp32 for all others; two numbers for each complex element. `needed`: for each
// parameter, whether it has a place.
std::vector<GradientShape> shapes_of(const std::vector<at::Tensor>& parameters,
                                     const std::vector<bool>& needed, bool reproducible);

// Makes the reduction that the settings choose, with its layout and its exchange. `parameters` and
// `habits` outlive it. `needed`: for each parameter, equal on all ranks, false if it never gets a
// gradient. Collective. Throws cox::Error, on all ranks for parameters that reproducible mode
// cannot sum (fp64, or not on the CPU).
std::unique_ptr<GradientReduction> make_reduction(const ReductionSetup& setup,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  GradientHabits& habits);

// ReductionMaker makes a reduction other than make_reduction()'s.
struct ReductionMaker {
  std::function<std::unique_ptr<GradientReduction>(const std::vector<at::Tensor>& parameters,
                                                   const std::vector<bool>& needed,
                                                   GradientHabits& habits)>
      make;
};

// Returns the one device of all parameters with a place in a bucket; the CPU if there are several.
c10::Device common_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<bool>& needed);

// SharedBuckets are the parts of a reduction with several ranks. `exchange` has the buckets of
// `layout`, or none if the buckets go over NCCL. `parameters` and `habits` outlive the reduction.
struct SharedBuckets {
  const std::vector<at::Tensor>& parameters;
  GradientLayout layout;
  std::unique_ptr<StepExchange> exchange;
  GradientHabits& habits;
};

// Makes the reduction of gradients on a device, over NCCL if setup.devices is open. Collective.
// Throws cox::Error. REQUIRES: common_device() of the parameters is no CPU.
std::unique_ptr<GradientReduction> make_device_reduction(const ReductionSetup& setup,
                                                         SharedBuckets buckets);

}  // namespace cox::detail
