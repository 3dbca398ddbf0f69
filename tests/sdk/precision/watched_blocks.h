// A model whose blocks are followed and watched step by step.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/precision/block_health.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/stream/storage.h"
#include "tests/sdk/precision/fault_support.h"

namespace fault_test {

inline const cox::RankId kRank(2);

class Watched {
 public:
  explicit Watched(const std::shared_ptr<torch::nn::Module>& module)
      : parameters(module->parameters()) {
    blocks.attach(*module);
    const cox::detail::BlockMap& map = *blocks.followed();
    std::vector<std::optional<cox::BlockId>> owners;
    for (const Tensor& parameter : parameters) {
      owners.push_back(map.owner(cox::detail::storage_impl(parameter)));
    }
    look.watch(health.watch(blocks.size(), parameters, std::move(owners)));
    blocks.visits()->observe(&look);
  }
  ~Watched() { blocks.release(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  void begin(float scale = 1) {
    for (const Tensor& parameter : parameters) parameter.mutable_grad().reset();
    health.begin_step(scale);
    look.begin_step();
    following.emplace(blocks);
  }
  // Runs forward, backward and the end of a step.
  std::vector<cox::BlockEvidence> step(const std::function<Tensor()>& loss, float scale = 1) {
    begin(scale);
    const Tensor value = loss();
    health.loss(value.item<double>());
    (value * scale).backward();
    return end();
  }
  std::vector<cox::BlockEvidence> end(cox::RankId rank = kRank) {
    following.reset();
    blocks.visits()->forget_step();
    health.parameter_gradients(bad_gradients(parameters), {});
    const auto evidence = health.end_step(rank);
    return {evidence.begin(), evidence.end()};
  }
  cox::BlockId block(const std::string& name) const {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks.names()[b] == name) return cox::BlockId(static_cast<cox::BlockId::rep>(b));
    }
    throw std::runtime_error("no block " + name);
  }
  cox::detail::HealthVerdict verdict() const { return health.verdict(); }

  cox::detail::BlockWatch blocks;
  std::vector<Tensor> parameters;
  cox::detail::BlockHealth health;
  cox::detail::VisitHealth look;
  std::optional<cox::detail::BlockWatch::Following> following;
};

// Multiplies by a parameter.
struct GainImpl : torch::nn::Module {
  explicit GainImpl(double value) : gain(register_parameter("gain", torch::full({1}, value))) {}
  Tensor forward(const Tensor& x) { return x * gain; }
  Tensor gain;
};
TORCH_MODULE(Gain);

// Blocks "b0", "b1", ..., each a multiplication by the same value.
struct Gains {
  explicit Gains(int count, double value = 2)
      : module(std::make_shared<torch::nn::Module>("gains")) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(module->register_module("b" + std::to_string(i), Gain(value)));
    }
  }
  Tensor operator()(std::size_t layer, const Tensor& x) { return layers[layer]->forward(x); }
  std::shared_ptr<torch::nn::Module> module;
  std::vector<Gain> layers;
};

inline Tensor leaf() {
  return torch::linspace(1, 2, 8).requires_grad_(true);
}

}  // namespace fault_test
