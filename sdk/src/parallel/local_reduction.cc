#include "sdk/src/parallel/local_reduction.h"

#include <torch/torch.h>

#include <utility>

namespace cox::detail {
namespace {

void divide(std::vector<at::Tensor> gradients, double divisor) {
  const torch::NoGradGuard no_grad;
  std::erase_if(gradients, [](const at::Tensor& gradient) { return !gradient.defined(); });
  at::_foreach_div_(gradients, divisor);
}

}  // namespace

void LocalReduction::begin(const MicroBatchFacts& facts) {
  is_whole_ = unit_ == 0 && facts.which == MicroBatch::last;
  unit_ = facts.unit;
}

void LocalReduction::ready(std::size_t parameter) {
  if (!is_whole_ || std::this_thread::get_id() != thread_) return;
  seen_.look(parameter, parameters_[parameter].grad());
}

StepBallot LocalReduction::merge(StepBallot mine, const std::function<void()>&) {
  return mine;
}

double LocalReduction::hand_back(double total, double loss_scale) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters_) gradients.push_back(p.grad());
  const double unit = std::exchange(unit_, 0.0);
  const double divisor = unit > 0 ? total / unit * loss_scale : 1;
  if (divisor != 1) divide(gradients, divisor);
  return l2_norm(gradients, seen_);
}

// Looked at only in a step that went wrong; the division keeps what is not finite.
const std::vector<std::int64_t>& LocalReduction::nonfinite() const {
  nonfinite_.clear();
  for (const at::Tensor& p : parameters_) nonfinite_.push_back(count_nonfinite(p.grad()));
  return nonfinite_;
}

}  // namespace cox::detail
