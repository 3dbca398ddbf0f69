// GradientReduction: how the gradients of one step become their average on all ranks. The reducer
// tells it of micro-batches and of gradients that are complete; it puts them where they are summed
// up, and hands back what came out. Two ways: OverlappedReduction (sums in fp32) and ExactReduction
// (reproducible mode); a job of one rank in the first way needs neither (LocalReduction).
// make_reduction() chooses. Thread rule: the thread that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/settings/parallel.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"
#include "coxswain/reducer.h"
#include "sdk/src/parallel/bucket_tuning.h"
#include "sdk/src/parallel/exact_sum.h"
#include "sdk/src/parallel/step_exchange.h"

namespace cox::detail {

// What one micro-batch's gradients are, relative to those of its mean loss.
struct MicroBatchFacts {
  double weight = 1;      // what its mean loss stands for
  double unit = 1;        // .grad holds weight / unit times the gradient ...
  double loss_scale = 1;  // ... times this
  MicroBatch which = MicroBatch::last;
};

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  // What the loss of this micro-batch is to be multiplied with before its backward pass.
  virtual double factor(const MicroBatchFacts& facts) const = 0;
  // Around each backward pass; between the two come the hooks.
  virtual void begin(const MicroBatchFacts& facts) = 0;
  virtual void ready(std::size_t parameter) = 0;
  virtual void end() = 0;

  // Whatever has not been sent is sent now. Does not wait.
  virtual void flush() = 0;
  // Adds what it knows to `mine` and merges all ranks'. Collective, waits.
  virtual StepBallot merge(StepBallot mine, const std::function<void()>& pump) = 0;
  // After merge(), on equal terms on all ranks: .grad of every parameter becomes the average of
  // `total` weight (under `loss_scale`); undefined where no rank had one. Returns its L2 norm.
  virtual double hand_back(double total, double loss_scale) = 0;
  // This rank's own gradients that were not finite, by parameter, of the step just merged.
  virtual const std::vector<std::int64_t>& nonfinite() const = 0;

  // In which gradients became ready in the last micro-batch of the step just merged; shorter than
  // the list of parameters where some got none, empty where nothing is exchanged.
  virtual std::span<const std::uint32_t> order() const { return {}; }
  virtual StepExchange* exchange() { return nullptr; }

  // Whether, in the last micro-batch, what autograd allocated for this gradient is free again as
  // soon as the gradient is ready.
  virtual bool moves_when_ready(std::size_t) const { return false; }
};

// LocalReduction is the way of a job of one rank: gradients stay where autograd left them and are
// only divided. Nothing is copied.
class LocalReduction final : public GradientReduction {
 public:
  explicit LocalReduction(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  double factor(const MicroBatchFacts& facts) const override {
    return facts.weight / facts.unit * facts.loss_scale;
  }
  void begin(const MicroBatchFacts& facts) override { unit_ = facts.unit; }
  void ready(std::size_t) override {}
  void end() override {}
  void flush() override {}
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override;
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override;

 private:
  const std::vector<at::Tensor>& parameters_;
  double unit_ = 0;  // 0 = no backward pass in this step
  mutable std::vector<std::int64_t> nonfinite_;
};

// The ranks that average, and how. All of it must outlive the reduction.
struct ReductionSetup {
  transport::Communicator& ranks;
  const transport::WaitPolicy& wait;
  const ReductionConfig& config;
};

// Returns whether each parameter requires a gradient now.
std::vector<bool> required_of(const std::vector<at::Tensor>& parameters);

// Makes the way of averaging that the settings ask for, with its layout and its exchange:
// ExactReduction in reproducible mode, else LocalReduction in a job of one rank and
// OverlappedReduction in any other. `parameters` must outlive it; `needed`: one a parameter, equal
// on all ranks, false for those that never get a gradient; `bins`: reproducible mode, one a
// parameter to start from. Collective. Throws cox::Error.
std::unique_ptr<GradientReduction> make_reduction(const ReductionSetup& setup,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  const std::vector<ExactBin>& bins = {});

}  // namespace cox::detail
