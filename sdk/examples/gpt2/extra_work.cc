#include "sdk/examples/gpt2/extra_work.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace gpt2 {
namespace {

// RandomStateKept restores the random state at its end.
class RandomStateKept {
 public:
  RandomStateKept() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~RandomStateKept() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  RandomStateKept(const RandomStateKept&) = delete;
  RandomStateKept& operator=(const RandomStateKept&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

ExtraWork::ExtraWork(const Gpt2& model, std::vector<Slowdown> slowdowns, std::int64_t rank,
                     std::int64_t most_samples)
    : model_(model), slowdowns_(std::move(slowdowns)), rank_(rank), most_samples_(most_samples) {}

std::int64_t ExtraWork::run(cox::TrainerStep& step) {
  const double factor = factor_of(slowdowns_, rank_, step.number());
  if (factor <= 1) return 0;
  owed_samples_ += (factor - 1) * static_cast<double>(step.batch().samples);
  const auto samples = static_cast<std::int64_t>(owed_samples_);
  owed_samples_ -= static_cast<double>(samples);
  if (samples == 0) return 0;
  const RandomStateKept kept;
  share_weights();
  const std::int64_t share = step.batch().samples;
  const std::int64_t most = most_samples_ > 0 ? std::min(most_samples_, share) : share;
  for (std::int64_t left = samples; left > 0; left -= most) work_on(step, std::min(left, most));
  return samples;
}

// The twin has no blocks known to a session, and its own parameters over the same memory.
void ExtraWork::share_weights() {
  if (!twin_) twin_.emplace(model_->config());
  const std::vector<at::Tensor> weights = model_->parameters();
  const std::vector<at::Tensor> shared = twin_.value()->parameters();
  for (std::size_t i = 0; i < weights.size(); ++i) shared[i].set_data(weights[i].detach());
}

// autograd::grad returns gradients and adds to no parameter's gradient.
void ExtraWork::work_on(cox::TrainerStep& step, std::int64_t samples) {
  const cox::Batch& batch = step.batch();
  at::Tensor loss;
  {
    const cox::PhaseScope phase = step.phase(cox::Phase::forward);
    loss = twin_.value()->loss(batch.inputs.narrow(0, 0, samples),
                               batch.targets.narrow(0, 0, samples));
  }
  const cox::PhaseScope phase = step.phase(cox::Phase::backward);
  torch::autograd::grad({loss}, twin_.value()->parameters());
}

}  // namespace gpt2
