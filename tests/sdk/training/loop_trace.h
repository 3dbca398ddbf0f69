// Traces of training loops, for comparing an adopted loop with its plain form.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace cox::test {

// Adopts a loop's model; does nothing in a plain loop.
using Adopt = std::function<void(torch::nn::Module&)>;

// The state after each step: parameters, gradients, buffers and the random generator.
class LoopTrace {
 public:
  void note(const torch::nn::Module& model, const std::vector<at::Tensor>& more = {}) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model.parameters()) {
      add(parameter);
      add(parameter.grad());
    }
    for (const at::Tensor& buffer : model.buffers()) add(buffer);
    for (const at::Tensor& each : more) add(each);
    add(at::randn({2}));
  }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  void add(const at::Tensor& tensor) {
    const bool is_sparse = tensor.defined() && tensor.is_sparse();
    const at::Tensor values = is_sparse ? tensor.to_dense() : tensor;
    tensors_.push_back(values.defined() ? values.detach().clone() : at::full({1}, -77));
  }
  std::vector<at::Tensor> tensors_;
};

// Returns numbers that depend on the step alone.
inline at::Tensor batch_of_step(int step, const std::vector<std::int64_t>& shape,
                                at::ScalarType type = at::kFloat) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + step));
  return at::randn(shape, generator, at::TensorOptions(type));
}

}  // namespace cox::test
