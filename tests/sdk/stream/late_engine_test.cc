// The engine of saved tensors, installed after torch's own engine has run. Alone in its process,
// because a program installs the engine only once.
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "sdk/src/stream/saved_tensors.h"

#include <doctest/doctest.h>

using at::Tensor;

namespace {

constexpr std::int64_t kDeep = 100;  // LibTorch runs passes deeper than 60 on threads of a pool

// The identity, whose backward pass runs another one inside, `depth` times.
struct Nested : torch::autograd::Function<Nested> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        std::int64_t depth) {
    context->saved_data["depth"] = depth;
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const std::int64_t depth = context->saved_data["depth"].toInt();
    if (depth > 0) {
      const torch::AutoGradMode on(true);
      const Tensor leaf = at::ones({2}, gradients[0].options()).requires_grad_();
      apply(leaf, depth - 1).sum().backward();
    }
    return {gradients[0], Tensor()};
  }
};

Tensor gradient_through(std::int64_t depth, at::Device device) {
  const Tensor leaf = at::ones({2}, device).requires_grad_();
  (Nested::apply(leaf, depth) * 3).sum().backward();
  return leaf.grad().cpu();
}

}  // namespace

TEST_CASE(
    "installed after a first backward pass, the engine runs deep passes and passes on devices") {
  std::vector<at::Device> devices = {at::Device(at::kCPU)};
  if (at::hasCUDA()) devices.emplace_back(at::kCUDA, 0);
  for (const at::Device device : devices) gradient_through(0, device);  // by torch's own engine
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  for (const at::Device device : devices) {
    CHECK(gradient_through(0, device).equal(at::full({2}, 3.0)));
    CHECK(gradient_through(kDeep, device).equal(at::full({2}, 3.0)));
  }
}
