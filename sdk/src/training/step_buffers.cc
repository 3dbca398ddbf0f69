#include "sdk/src/training/step_buffers.h"

#include <torch/torch.h>

#include <algorithm>

#include "coxswain/error.h"

namespace cox::detail {

StepBuffers::StepBuffers(SessionState& state, torch::nn::Module& model) : state_(state) {
  std::vector<at::Tensor> apart;
  if (state_.job().config().reduction.reproducible) {
    statistics_.emplace(model);
    apart = statistics_->buffers();
  }
  for (const at::Tensor& buffer : model.buffers()) {
    if (!buffer.defined()) continue;
    all_.push_back(buffer);
    const bool is_apart =
        std::ranges::any_of(apart, [&](const at::Tensor& other) { return buffer.is_same(other); });
    if (!is_apart) kept_.push_back({buffer, {}});
  }
}

std::uint64_t StepBuffers::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& buffer : all_) sum += static_cast<std::uint64_t>(buffer._version());
  return sum;
}

void StepBuffers::begin_step() {
  if (statistics_) statistics_->begin_step();
  const std::uint64_t now = versions();
  if (seen_ == now) return;
  for (Kept& kept : kept_) kept.before = kept.buffer.detach().clone();
  seen_ = now;
}

void StepBuffers::put_back() {
  if (statistics_) statistics_->put_back();
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::equal(kept.buffer, kept.before)) kept.buffer.copy_(kept.before);
  }
}

void StepBuffers::put_back_nonfinite() {
  if (statistics_) statistics_->put_back();
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::isfinite(kept.buffer).all().item<bool>()) kept.buffer.copy_(kept.before);
  }
}

void StepBuffers::fold(StepScope& step, const StepShare& share) {
  if (!statistics_) return;
  const PhaseScope phase = step.phase(Phase::communication);
  const Membership& job = state_.job();
  require(statistics_->fold(
              job.data(), job.world().wait_policy(), [this] { state_.control().plane().pump(); },
              share.micro_batches, share.most_on_a_rank),
          "running statistics");
}

}  // namespace cox::detail
