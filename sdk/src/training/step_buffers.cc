#include "sdk/src/training/step_buffers.h"

#include <torch/torch.h>

namespace cox::detail {

StepBuffers::StepBuffers(const std::vector<at::Tensor>& buffers,
                         const std::function<bool(const at::Tensor&)>& is_kept) {
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined()) continue;
    all_.push_back(buffer);
    if (is_kept(buffer)) kept_.push_back({buffer, {}});
  }
}

std::uint64_t StepBuffers::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& buffer : all_) sum += static_cast<std::uint64_t>(buffer._version());
  return sum;
}

void StepBuffers::begin_step() {
  const std::uint64_t now = versions();
  if (seen_ == now) return;
  for (Kept& kept : kept_) kept.before = kept.buffer.detach().clone();
  seen_ = now;
}

void StepBuffers::put_back() {
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::equal(kept.buffer, kept.before)) kept.buffer.copy_(kept.before);
  }
}

void StepBuffers::put_back_nonfinite() {
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::isfinite(kept.buffer).all().item<bool>()) kept.buffer.copy_(kept.before);
  }
}

}  // namespace cox::detail
