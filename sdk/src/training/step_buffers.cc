#include "sdk/src/training/step_buffers.h"

#include <torch/torch.h>

#include <algorithm>

namespace cox::detail {

StepBuffers::StepBuffers(const std::vector<at::Tensor>& buffers,
                         const std::vector<at::Tensor>& apart) {
  for (const at::Tensor& buffer : buffers) {
    const bool is_apart = std::any_of(
        apart.begin(), apart.end(), [&](const at::Tensor& other) { return buffer.is_same(other); });
    if (buffer.defined() && !is_apart) kept_.push_back({buffer, {}, 0});
  }
}

void StepBuffers::begin_step() {
  for (Kept& kept : kept_) {
    const auto version = static_cast<std::int64_t>(kept.buffer._version());
    if (kept.before.defined() && version == kept.version) continue;
    kept.before = kept.buffer.detach().clone();
    kept.version = version;
  }
}

void StepBuffers::put_back() {
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (static_cast<std::int64_t>(kept.buffer._version()) == kept.version) continue;
    kept.buffer.copy_(kept.before);
    kept.version = static_cast<std::int64_t>(kept.buffer._version());
  }
}

}  // namespace cox::detail
