#include "sdk/src/parallel/ready_hooks.h"

#include <torch/torch.h>

#include <utility>

namespace cox::detail {

struct ReadyHooks::Listener {
  Ready ready;
};

namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::Variable;

// Stays in its slot after its listener's end: another library's hook may be chained in front.
template <class Listener>
class Hook final : public PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<Listener> listener, std::size_t parameter,
       std::unique_ptr<PostAccumulateGradHook> earlier)
      : listener_(std::move(listener)), parameter_(parameter), earlier_(std::move(earlier)) {}

  void operator()(const Variable& tensor) override {
    if (earlier_) (*earlier_)(tensor);
    if (const auto listener = listener_.lock()) listener->ready(parameter_);
  }

  bool is_of(const std::shared_ptr<Listener>& listener) const {
    return !listener_.owner_before(listener) && !listener.owner_before(listener_);
  }
  std::unique_ptr<PostAccumulateGradHook> give_earlier() { return std::move(earlier_); }

 private:
  std::weak_ptr<Listener> listener_;
  std::size_t parameter_;
  std::unique_ptr<PostAccumulateGradHook> earlier_;
};

}  // namespace

ReadyHooks::ReadyHooks(std::span<const at::Tensor> parameters, Ready ready)
    : listener_(std::make_shared<Listener>(std::move(ready))),
      parameters_(parameters.begin(), parameters.end()) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!parameters_[p].requires_grad()) continue;
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameters_[p]);
    auto hook = std::make_unique<Hook<Listener>>(listener_, p, std::move(slot));
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[p], std::move(hook));
  }
}

ReadyHooks::~ReadyHooks() {
  for (const at::Tensor& parameter : parameters_) {
    if (!parameter.requires_grad()) continue;
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter);
    auto* hook = dynamic_cast<Hook<Listener>*>(slot.get());
    if (hook == nullptr || !hook->is_of(listener_)) continue;
    auto earlier = hook->give_earlier();
    slot = std::move(earlier);
  }
}

}  // namespace cox::detail
