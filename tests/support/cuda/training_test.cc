// Plain LibTorch trains on the stand-ins for CUDA, with the CPU's bits if the same kernels run. Run
// with the stand-ins preloaded.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/cuda/stand_in.h"

#include <doctest/doctest.h>

namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

const at::Device kCpu(at::kCPU), kCuda(at::kCUDA, 0);
constexpr std::int64_t kBatch = 4, kTime = 12, kWidth = 32, kWords = 50, kHeads = 4;
constexpr int kSteps = 5;

// Embedding, attention, LayerNorm, GELU, dropout, a convolution, BatchNorm, cross-entropy.
struct Model : torch::nn::Module {
  Model() {
    words = register_module("words", torch::nn::Embedding(kWords, kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    heads = register_module("heads", torch::nn::Linear(kWidth, 3 * kWidth));
    inner = register_module("inner", torch::nn::Linear(kWidth, 4 * kWidth));
    outer = register_module("outer", torch::nn::Linear(4 * kWidth, kWidth));
    shift = register_module(
        "shift", torch::nn::Conv1d(torch::nn::Conv1dOptions(kWidth, kWidth, 3).padding(1)));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(kWidth));
    logits = register_module("logits", torch::nn::Linear(kWidth, kWords));
  }

  Tensor attend(const Tensor& x) {
    auto parts = heads(norm(x)).view({kBatch, kTime, 3, kHeads, kWidth / kHeads});
    parts = parts.permute({2, 0, 3, 1, 4});
    const Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    return y.transpose(1, 2).reshape({kBatch, kTime, kWidth});
  }

  Tensor loss(const Tensor& text, const Tensor& next) {
    Tensor x = words(text);
    x = x + torch::dropout(attend(x), 0.1, is_training());
    x = x + outer(torch::gelu(inner(x)));
    x = x + shift(x.transpose(1, 2)).transpose(1, 2);
    x = batch_norm(x.reshape({kBatch * kTime, kWidth}));
    return F::cross_entropy(logits(x), next.view(-1));
  }

  torch::nn::Embedding words{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear heads{nullptr}, inner{nullptr}, outer{nullptr}, logits{nullptr};
  torch::nn::Conv1d shift{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
};

// LibTorch's AdamW, plain or fused.
class Optimizer {
 public:
  Optimizer(std::vector<Tensor> parameters, bool fused)
      : parameters_(std::move(parameters)), fused_(fused), loop_(parameters_, kRate) {
    for (const Tensor& parameter : parameters_) {
      first_.push_back(at::zeros_like(parameter));
      second_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}, parameter.options()));
    }
  }

  void step() {
    if (!fused_) {
      loop_.step();
      return;
    }
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    for (Tensor& step : steps_) step.add_(1);
    at::_fused_adamw_(parameters_, gradients, first_, second_, {}, steps_, kRate, 0.9, 0.999, 1e-2,
                      1e-8, false, false);
  }

 private:
  static constexpr double kRate = 1e-2;
  std::vector<Tensor> parameters_;
  bool fused_;
  torch::optim::AdamW loop_;
  std::vector<Tensor> first_, second_, steps_;
};

struct Trained {
  std::vector<Tensor> state;   // parameters and buffers, on the CPU
  std::vector<Tensor> losses;  // on the CPU
  std::uint64_t waits = 0;     // synchronisations in the steps
};

Trained train(at::Device device, bool fused) {
  torch::manual_seed(1);
  Model model;
  model.to(device);
  Optimizer optimizer(model.parameters(), fused);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(7);
  Trained result;
  std::vector<Tensor> losses;
  const std::uint64_t before = cox_standin_synchronisations();
  for (int step = 0; step < kSteps; ++step) {
    const Tensor text = torch::arange(kBatch * kTime).add(step * 7).remainder(kWords);
    const Tensor next = (text * 3 + 1).remainder(kWords);
    const auto there = [&](const Tensor& tensor) {
      return tensor.view({kBatch, kTime}).pin_memory().to(device, true);
    };
    model.zero_grad();
    const Tensor loss = model.loss(there(text), there(next));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  result.waits = cox_standin_synchronisations() - before;
  for (const Tensor& loss : losses) result.losses.push_back(loss.cpu());
  for (const Tensor& each : model.parameters()) result.state.push_back(each.detach().cpu());
  for (const Tensor& each : model.buffers()) result.state.push_back(each.cpu());
  return result;
}

std::size_t count_unequal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  std::size_t unequal = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) unequal += !a[i].equal(b[i]);
  return unequal;
}

}  // namespace

TEST_CASE("five steps of a transformer have the CPU's bits, and no step waits for the device") {
  for (const bool fused : {false, true}) {
    CAPTURE(fused);
    const Trained here = train(kCpu, fused), there = train(kCuda, fused);
    CHECK(here.state.size() == 18);
    CHECK(count_unequal(here.state, there.state) == 0);
    CHECK(count_unequal(here.losses, there.losses) == 0);
    CHECK(there.waits == 0);
  }
}

TEST_CASE("an LSTM's fused cell agrees with the CPU's to rounding") {
  const auto run = [](at::Device device) {
    torch::manual_seed(3);
    torch::nn::LSTM lstm(8, 8);
    const Tensor input = torch::randn({3, 2, 8});
    lstm->to(device);
    std::get<0>(lstm(input.to(device))).pow(2).sum().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& each : lstm->parameters()) gradients.push_back(each.grad().cpu());
    return at::cat({gradients[0].flatten(), gradients[1].flatten(), gradients[2], gradients[3]});
  };
  CHECK(at::allclose(run(kCpu), run(kCuda), 1e-5, 1e-7));
}

TEST_CASE("autocast on the device computes products in bf16 and keeps norms in fp32") {
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const auto options = at::TensorOptions().device(kCuda);
  const Tensor product = at::matmul(at::ones({4, 4}, options), at::ones({4, 4}, options));
  const Tensor normed = at::layer_norm(product, {4});
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::clear_cache();
  CHECK((product.scalar_type() == at::kBFloat16));
  CHECK((normed.scalar_type() == at::kFloat));
}
