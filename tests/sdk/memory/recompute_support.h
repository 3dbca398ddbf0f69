// What the tests of memory actions share: models whose blocks run under a plan of actions, training
// steps whose every result is kept, and the small models that the block tests do not have.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/run.h"
#include "coxswain/tile.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/src/blocks/block_registry.h"
#include "tests/sdk/blocks/support.h"

namespace memory_test {

using at::Tensor;
using blocks_test::Calls;
using blocks_test::same_bits;
using cox::BlockId;
using cox::MemoryAction;
using cox::detail::BlockRegistry;
using Plan = std::vector<MemoryAction>;

inline constexpr MemoryAction kKeep = MemoryAction::keep;
inline constexpr MemoryAction kRecompute = MemoryAction::recompute;
inline constexpr MemoryAction kTile = MemoryAction::tile;

struct Autocast {
  explicit Autocast(bool on) : was(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was);
  }
  bool was;
};

// A plan that is shorter than the model is repeated.
inline void steer(BlockRegistry& registry, const Plan& plan) {
  for (std::size_t b = 0; b < registry.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    if (!registry.set_action(block, plan[b % plan.size()]).ok()) throw std::runtime_error("engine");
  }
}

inline Tensor loss_of(const Tensor& out) {
  return out.to(at::kFloat).pow(2).mean();
}

// Steps of forward, backward and update from a fixed seed under a plan: outputs, gradients, then
// parameters, buffers and the state of the generator. `loss(net)` makes a step's loss.
template <class Net, class Loss>
std::vector<Tensor> train(Net net, const Plan& plan, bool autocast, const Loss& loss,
                          int steps = 2) {
  BlockRegistry registry = *BlockRegistry::discover(*net);
  steer(registry, plan);
  torch::manual_seed(11);
  std::vector<Tensor> seen;
  for (int step = 0; step < steps; ++step) {
    Tensor out;
    {
      const Autocast scope(autocast);
      out = loss(net);
    }
    net->zero_grad();
    out.backward();
    seen.push_back(out.detach().clone());
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net->parameters()) {
      if (!parameter.grad().defined()) continue;
      seen.push_back(parameter.grad().clone());
      parameter.sub_(parameter.grad(), 0.01);
    }
  }
  for (const Tensor& parameter : net->parameters()) seen.push_back(parameter);
  for (const Tensor& buffer : net->buffers()) seen.push_back(buffer);
  seen.push_back(at::detail::getDefaultCPUGenerator().get_state());
  for (const auto& pin : registry.pinned()) throw std::runtime_error("pinned: " + pin.reason);
  return seen;
}

// The models of the block tests, through cox::run.
template <class Net>
std::vector<Tensor> train_blocks(const Plan& plan, bool autocast, int steps = 2) {
  torch::manual_seed(7);
  return train(
      Net(), plan, autocast,
      [](Net& net) { return loss_of(net->forward(net->example(), Calls::through_run)); }, steps);
}

inline gpt2::Config tiny_gpt2() {
  gpt2::Config config;
  config.vocab_size = 31;
  config.n_positions = 12;
  config.n_embd = 16;
  config.n_layer = 4;
  config.n_head = 2;
  return config;
}

inline std::vector<Tensor> train_gpt2(const Plan& plan, bool autocast, int steps = 2) {
  torch::manual_seed(7);
  const Tensor tokens = torch::arange(24).view({2, 12});
  return train(
      gpt2::Gpt2(tiny_gpt2()), plan, autocast,
      [&](gpt2::Gpt2& net) { return net->loss(tokens, tokens + 1); }, steps);
}

// Two blocks over one Linear, whose weight is also an input of both, used twice in each.
struct SharedLayerImpl : torch::nn::Module {
  explicit SharedLayerImpl(torch::nn::Linear shared)
      : linear(register_module("linear", std::move(shared))) {}
  Tensor forward(const Tensor& x, const Tensor& weight) {
    const Tensor y = torch::dropout(torch::gelu(linear->forward(x)), 0.2, is_training());
    return torch::tanh(linear->forward(y)) + torch::linear(x, weight);
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(SharedLayer);

struct SharedNetImpl : torch::nn::Module {
  SharedNetImpl()
      : linear(6, 6),
        first(register_module("first", SharedLayer(linear))),
        second(register_module("second", SharedLayer(linear))) {}
  Tensor forward(const Tensor& x, Calls how) {
    const Tensor y = blocks_test::call(how, first, x, linear->weight);
    return blocks_test::call(how, second, y, linear->weight);
  }
  Tensor example() const { return torch::linspace(-1, 1, 24).view({4, 6}); }
  torch::nn::Linear linear;
  cox::Block<SharedLayer> first, second;
};
TORCH_MODULE(SharedNet);

// Blocks that tile, with dropout and batch statistics inside the tiles.
struct TileLayerImpl : torch::nn::Module {
  explicit TileLayerImpl(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(3 * width))) {}
  Tensor forward(const Tensor& x) {
    TileLayerImpl* self = this;
    const auto rows = [self](const Tensor& part) {
      const Tensor y = torch::relu(self->norm->forward(self->up->forward(part)));
      return self->down->forward(torch::dropout(y, 0.2, self->is_training()));
    };
    return x + cox::tile(cox::owned(rows), x, 0, 3);
  }
  torch::nn::Linear up, down;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(TileLayer);

struct TileNetImpl : torch::nn::Module {
  TileNetImpl() : head(register_parameter("head", torch::randn({9, 6}))) {
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back(register_module("layer" + std::to_string(i), TileLayer(6)));
    }
  }
  Tensor loss() {
    Tensor x = torch::linspace(-1, 1, 48).view({8, 6});
    for (const auto& block : blocks) x = cox::run(block, &TileLayerImpl::forward, x);
    return cox::tiled_cross_entropy(x, head, torch::arange(8), 3);
  }
  Tensor head;
  std::vector<cox::Block<TileLayer>> blocks;
};
TORCH_MODULE(TileNet);

inline std::vector<Tensor> train_tiles(const Plan& plan, bool autocast, int steps = 2) {
  torch::manual_seed(7);
  return train(
      TileNet(), plan, autocast, [](TileNet& net) { return net->loss(); }, steps);
}

}  // namespace memory_test
