// TrialStep: runs forward and backward of a sample batch as often as a trial asks for, and leaves
// no trace: gradients are dropped, buffers and random generators put back. Tells by fingerprints
// whether two runs gave the same gradients. Gradients that a real step does not keep while backward
// goes on are dropped as soon as they are complete, so that memory is what it will be. References
// the model and the user's function; used by the thread that trains, before its first step.
// Requires: no parameter has a gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/status.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

class TrialStep {
 public:
  // `loss`: the mean loss of the sample batch, a scalar that requires gradients. `released`:
  // parameters whose gradients are dropped as they are completed; others' stay to the end of a run.
  TrialStep(torch::nn::Module& model, std::function<at::Tensor()> loss,
            std::vector<at::Tensor> released = {});

  // Forward and backward once. What `loss` or its backward pass throws comes as internal, with its
  // text.
  Status run();

  // Of the last run: one number per parameter, in the model's order; equal numbers, equal bits.
  const std::vector<std::uint64_t>& gradients() const { return gradients_; }
  std::vector<std::string> parameter_names() const;

 private:
  Status run_once();
  void take_gradient(std::size_t place, const at::Tensor& parameter);

  torch::nn::Module& model_;
  std::function<at::Tensor()> loss_;
  std::vector<at::Tensor> released_;
  std::vector<std::uint64_t> gradients_;
};

}  // namespace cox::detail
