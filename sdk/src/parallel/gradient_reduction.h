// GradientReduction: how the gradients of one step become their average on all ranks. The reducer
// tells it of micro-batches and of gradients that are complete; it puts them where they are summed
// up, and hands back what came out. Two ways: OverlappedReduction (sums in fp32) and ExactReduction
// (reproducible mode); a job of one rank in the first way needs neither (LocalReduction). Thread
// rule: the thread that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coxswain/reducer.h"
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

}  // namespace cox::detail
