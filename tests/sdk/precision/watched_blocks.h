// A model whose blocks are watched step by step, and blocks whose function is the test's business.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "sdk/src/precision/block_health.h"
#include "tests/sdk/precision/fault_support.h"

namespace fault_test {

inline const cox::RankId kRank(2);

// A module that is watched, step by step.
class Watched {
 public:
  explicit Watched(const std::shared_ptr<torch::nn::Module>& module)
      : registry(*cox::detail::BlockRegistry::discover(*module)), parameters(module->parameters()) {
    health.attach(registry, parameters);
  }
  ~Watched() { health.detach(registry); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // Forward, backward and the end of a step.
  std::vector<cox::BlockEvidence> step(const std::function<Tensor()>& loss, float scale = 1) {
    for (const Tensor& parameter : parameters) parameter.mutable_grad().reset();
    health.begin_step(scale);
    const Tensor value = loss();
    health.loss(value.item<double>());
    (value * scale).backward();
    return end();
  }
  std::vector<cox::BlockEvidence> end() {
    health.parameter_gradients(bad_gradients(parameters));
    const auto evidence = health.end_step(kRank);
    return {evidence.begin(), evidence.end()};
  }
  cox::BlockId block(const std::string& name) const {
    for (std::size_t b = 0; b < registry.size(); ++b) {
      if (registry.name(cox::BlockId(static_cast<cox::BlockId::rep>(b))) == name) {
        return cox::BlockId(static_cast<cox::BlockId::rep>(b));
      }
    }
    throw std::runtime_error("no block " + name);
  }
  cox::detail::HealthVerdict verdict() const { return health.verdict(); }

  cox::detail::BlockRegistry registry;
  std::vector<Tensor> parameters;
  cox::detail::BlockHealth health;
};

struct EmptyImpl : torch::nn::Module {};
using Empty = std::shared_ptr<EmptyImpl>;

// Blocks without parameters whose function is the test's business.
struct Frames {
  explicit Frames(int count) : module(std::make_shared<torch::nn::Module>("frames")) {
    for (int i = 0; i < count; ++i) {
      blocks.emplace_back(
          module->register_module("b" + std::to_string(i), std::make_shared<EmptyImpl>()));
    }
  }
  std::shared_ptr<torch::nn::Module> module;
  std::vector<cox::Block<Empty>> blocks;
};

inline Tensor leaf() {
  return torch::linspace(1, 2, 8).requires_grad_(true);
}

}  // namespace fault_test
