// The loop behind the saves of tests/sdk/training/old_saves, for the recording program and for the
// test that continues from the saves.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "coxswain/coxswain.h"

namespace old_saves {

// Has three parameters; the last has no gradient.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(3, 2));
    unused = register_parameter("unused", torch::ones({2}));
  }
  at::Tensor loss(const cox::Batch& batch) {
    return torch::mse_loss(first(batch.inputs), batch.targets);
  }
  torch::nn::Linear first{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(Net);

class Data final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 12; }
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    cox::Batch batch{torch::zeros({rows, 3}), torch::zeros({rows, 2}), rows};
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<double>(indices[static_cast<std::size_t>(r)]);
      batch.inputs[r] = torch::arange(3, torch::kFloat) * 0.25 + i;
      batch.targets[r] = torch::arange(2, torch::kFloat) - i;
    }
    return batch;
  }
};

using Optimizer =
    std::variant<std::unique_ptr<cox::AdamW>, std::unique_ptr<torch::optim::Optimizer>>;
struct Kind {
  const char* name;
  std::function<Optimizer(const torch::nn::Module&)> make;
};

template <class Of, class Options>
Kind kind(const char* name, Options options) {
  return {name, [options](const torch::nn::Module& net) -> Optimizer {
            if constexpr (std::is_same_v<Of, cox::AdamW>) {
              return std::make_unique<Of>(net.parameters(), options);
            } else {
              return std::unique_ptr<torch::optim::Optimizer>(
                  std::make_unique<Of>(net.parameters(), options));
            }
          }};
}

inline std::vector<Kind> kinds() {
  namespace optim = torch::optim;
  return {kind<cox::AdamW>("cox_adamw", cox::AdamWOptions{.lr = 0.01}),
          kind<optim::Adagrad>("adagrad", optim::AdagradOptions(0.01)),
          kind<optim::Adam>("adam", optim::AdamOptions(0.01).amsgrad(true)),
          kind<optim::AdamW>("adamw", optim::AdamWOptions(0.01)),
          kind<optim::RMSprop>("rmsprop", optim::RMSpropOptions(0.001).momentum(0.5)),
          kind<optim::SGD>("sgd", optim::SGDOptions(0.0001).momentum(0.9))};
}

// Trains up to `steps` steps in a session with these flags.
inline void train(cox::Session& session, Net& net, const Kind& kind, std::uint64_t steps) {
  Optimizer optimizer = kind.make(*net);
  const Data data;
  std::visit(
      [&](auto& held) {
        cox::Trainer trainer(session, *net, *held, {.global_batch = 4, .steps = steps});
        for (auto& step : trainer.steps(data)) {
          step.backward(step.forward([&] { return net->loss(step.batch()); }));
          step.update();
        }
      },
      optimizer);
}

}  // namespace old_saves
