// TrialStep runs forward and backward of a sample batch before the first step, as often as a
// calibration asks for, and leaves no trace: gradients are dropped, buffers and random generators
// put back. Its prints tell whether two runs gave the same gradients. Gradients that a real
// step does not keep are dropped as soon as they are complete, so that memory is what it will be.
// It refers to the model and the user's function and owns neither. Used by the thread that trains;
// does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/parallel/gradient_holders.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

// SampleStep is what the loop that trains gives to a calibration: a batch to try, and what a real
// step will hold in memory that a trial does not.
struct SampleStep {
  torch::nn::Module& model;
  std::function<at::Tensor()> loss;       // forward of the batch; empty on a rank that has none
  std::int64_t resident_later_bytes = 0;  // held from some later step on: optimizer's state, copies
  MicroBatches micro_batches = MicroBatches::one;
  // In the batch, where this rank's share decides how many that are; 0 in micro-batches of equal
  // size, whose peak is the same whatever the share.
  std::uint64_t samples = 0;
  // Lets go of what the last run of `loss` left beside the graph; may be empty.
  std::function<void()> release = {};
  // Of other steps that the loop takes in turn, those of a GAN's other player, say.
  std::vector<std::function<at::Tensor()>> other_losses = {};
  // Most bytes while the optimizer ran; 0 = not known.
  std::int64_t update_peak_bytes = 0;
  // Bytes of the gradients that the model has now and that the loop lets go between the step's
  // forward and backward pass.
  std::int64_t released_bytes = 0;
  // Bytes of a batch that `loss` holds beside the one that the program has now.
  std::int64_t spare_bytes = 0;
};

// What is kept of a parameter's gradient to compare it with that of another run.
struct GradientPrint {
  std::uint64_t bits = 0;  // equal for equal bits; 0 where there was no gradient
  double norm = 0;         // of some 65,536 elements that lie evenly in it
  friend bool operator==(const GradientPrint&, const GradientPrint&) = default;
};
GradientPrint print_of(const at::Tensor& gradient);
using GradientPrints = std::vector<GradientPrint>;  // one per parameter, in the model's order

// GradientSpread knows which gradients differ from run to run of one and the same step, and by how
// much. Kernels that add up in no fixed order, as the backward pass of fused attention does on a
// GPU, give other bits in every run; such a gradient cannot tell whether something else changed it.
class GradientSpread {
 public:
  // Two runs under the same settings. Runs of different models, or none, say nothing.
  void note(const GradientPrints& one, const GradientPrints& other);
  // Returns how many gradients have differed by themselves.
  std::size_t unsteady() const;
  // Returns the first parameter by which two runs are not of the same step: other bits where no
  // gradient has differed by itself, else a norm that is farther off than such runs are. Where some
  // differ, any may: one that had the same bits in three runs may have others in the fourth. A run
  // without gradients, which failed, is like none that has some.
  std::optional<std::size_t> first_unlike(const GradientPrints& one,
                                          const GradientPrints& other) const;

 private:
  // By parameter: the largest difference of norms so far, relative; -1 where bits were the same.
  std::vector<double> spread_;
};

class TrialStep {
 public:
  // `loss` returns the mean loss of the sample batch, a scalar that requires gradients. Gradients
  // of `released` parameters are dropped as they are completed; others stay to the end of a run.
  // REQUIRES: no parameter has a gradient.
  TrialStep(torch::nn::Module& model, std::function<at::Tensor()> loss,
            std::vector<at::Tensor> released = {});

  // Runs forward and backward once. Returns internal with the text of what `loss` or its backward
  // pass throws.
  Status run();

  // Returns what is kept of the gradients of the last run.
  const GradientPrints& gradients() const { return gradients_; }
  std::vector<std::string> parameter_names() const;

 private:
  Status run_once();
  void take_gradient(std::size_t place, const at::Tensor& parameter);

  torch::nn::Module& model_;
  std::function<at::Tensor()> loss_;
  std::vector<at::Tensor> released_;
  GradientPrints gradients_;
};

}  // namespace cox::detail
