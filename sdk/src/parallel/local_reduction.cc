#include "sdk/src/parallel/local_reduction.h"

#include <torch/torch.h>

#include <utility>

#include "sdk/src/parallel/gradient_norm.h"

namespace cox::detail {

StepBallot LocalReduction::merge(StepBallot mine, const std::function<void()>&) {
  return mine;
}

double LocalReduction::hand_back(double total, double loss_scale) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters_) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  const double unit = std::exchange(unit_, 0.0);
  const double divisor = unit > 0 ? total / unit * loss_scale : 1;
  const torch::NoGradGuard no_grad;
  if (divisor != 1) at::_foreach_div_(gradients, divisor);
  return l2_norm(gradients);
}

// Looked at only in a step that went wrong; the division keeps what is not finite.
const std::vector<std::int64_t>& LocalReduction::nonfinite() const {
  nonfinite_.clear();
  for (const at::Tensor& p : parameters_) nonfinite_.push_back(count_nonfinite(p.grad()));
  return nonfinite_;
}

}  // namespace cox::detail
