// TrialStep runs forward and backward of a sample batch before the first step, as often as a
// calibration needs. A run leaves no trace: gradients are dropped; buffers and random generators
// are restored. Prints of the gradients show whether two runs agree. Gradients that a real step
// does not keep are dropped when complete, so that a trial uses a real step's memory. Refers to the
// model and the user's function and owns neither. Training thread only; does not communicate.
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

// SampleStep is the training loop's input for a calibration: a batch to try, and the memory that a
// real step will hold in addition.
struct SampleStep {
  torch::nn::Module& model;
  std::function<at::Tensor()> loss;       // forward of the batch; empty on a rank without a batch
  std::int64_t resident_later_bytes = 0;  // held from a later step on: optimizer's state, copies
  MicroBatches micro_batches = MicroBatches::one;
  // Samples in the batch if the rank's share decides the number. 0 for micro-batches of equal size,
  // whose peak does not depend on the share.
  std::uint64_t samples = 0;
  // Releases memory that the last run of `loss` left outside the graph; may be empty.
  std::function<void()> release = {};
  // Losses of the loop's other steps, such as those of a GAN's other player. One that runs its own
  // backward passes returns an undefined tensor.
  std::vector<std::function<at::Tensor()>> other_losses = {};
  // Most bytes while the optimizer ran; 0 = unknown.
  std::int64_t update_peak_bytes = 0;
  // Bytes of gradients that the model has now and the loop releases between a step's forward and
  // backward pass.
  std::int64_t released_bytes = 0;
  // Bytes of a batch held by `loss` in addition to the program's current one.
  std::int64_t spare_bytes = 0;
};

// GradientPrint is the fingerprint of a parameter's gradient, for comparing runs.
struct GradientPrint {
  std::uint64_t bits = 0;  // equal for equal bits; 0: no gradient
  double norm = 0;         // over about 65,536 evenly spaced elements
  friend bool operator==(const GradientPrint&, const GradientPrint&) = default;
};
GradientPrint print_of(const at::Tensor& gradient);
using GradientPrints = std::vector<GradientPrint>;  // one for each parameter, in the model's order

// GradientSpread records which gradients differ between runs of the same step, and by how much.
// Kernels without a fixed order of additions, such as the backward pass of fused attention on a
// GPU, give other bits in every run. Differing bits of such a gradient prove no change.
class GradientSpread {
 public:
  // Records two runs under the same settings. Ignores empty runs and runs of different models.
  void note(const GradientPrints& one, const GradientPrints& other);
  // Returns how many gradients differed between equal runs.
  std::size_t unsteady() const;
  // Returns the first parameter whose gradients show that two runs are not of the same step. If no
  // gradient ever differed by itself, other bits decide; else a norm beyond the usual distance
  // does. Then no gradient's bits decide, because a gradient with equal bits in three runs may
  // differ in the fourth. A run that failed has no gradients and is unlike every run with some.
  std::optional<std::size_t> first_unlike(const GradientPrints& one,
                                          const GradientPrints& other) const;

 private:
  // By parameter: the largest relative difference of norms so far; -1 for equal bits.
  std::vector<double> spread_;
};

class TrialStep {
 public:
  // `loss` returns the mean loss of the sample batch, a scalar that requires gradients; or runs its
  // own backward passes and returns an undefined tensor. A run drops gradients of `released`
  // parameters as they are completed, and others at its end. REQUIRES: no parameter has a gradient.
  TrialStep(torch::nn::Module& model, std::function<at::Tensor()> loss,
            std::vector<at::Tensor> released = {});

  // Runs forward and backward once. Returns internal with the text of an exception from `loss` or
  // its backward pass.
  Status run();

  // Returns the prints of the last run's gradients.
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
