#include "sdk/src/parallel/local_reduction.h"

#include <torch/torch.h>

#include <utility>

#include "sdk/src/parallel/gradient_norm.h"

namespace cox::detail {
namespace {

void divide_gradients(const std::vector<at::Tensor>& parameters, double divisor) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  if (!gradients.empty()) at::_foreach_div_(gradients, divisor);
}

// As buckets make them with several ranks.
void make_dense(const std::vector<at::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& p : parameters) {
    const at::Tensor gradient = p.grad();
    if (!gradient.defined() || gradient.layout() == at::kStrided) continue;
    p.mutable_grad() = gradient.to_dense();
  }
}

}  // namespace

StepBallot LocalReduction::merge(StepBallot mine, const std::function<void()>&) {
  return mine;
}

double LocalReduction::hand_back(double total, double loss_scale) {
  make_dense(parameters_);
  const double unit = std::exchange(unit_, 0.0);
  const double divisor = unit > 0 ? total / unit * loss_scale : 1;
  if (divisor != 1) divide_gradients(parameters_, divisor);
  return gradient_norm(parameters_);
}

// Looked at only in a step that went wrong; the division keeps what is not finite.
const std::vector<std::int64_t>& LocalReduction::nonfinite() const {
  nonfinite_.clear();
  for (const at::Tensor& p : parameters_) nonfinite_.push_back(count_nonfinite(p.grad()));
  return nonfinite_;
}

}  // namespace cox::detail
