// Counts a step's waits for its device on the stand-ins for CUDA: under a Trainer, in an adopted
// loop, and in loops written without Coxswain.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "coxswain/clip.h"
#include "coxswain/loss_scaler.h"
#include "coxswain/tile.h"
#include "small_text.h"
#include "stand_in_counts.h"

// Counts the waits of settled steps, after one-time work such as the optimizer's state and a
// calibration.
class StepWaits {
 public:
  static constexpr std::uint64_t kSettled = 5;
  // Called at the start of every step, and after the last one.
  void next_step() {
    if (steps_++ > kSettled) most_ = std::max(most_, synchronisations() - before_);
    before_ = synchronisations();
  }
  std::uint64_t most() const { return most_; }

 private:
  std::uint64_t steps_ = 0;
  std::uint64_t before_ = 0;
  std::uint64_t most_ = 0;
};

// Blocks that compute in parts, one after the other, and logits that exist for some of the rows at
// a time.
struct TiledTextImpl : torch::nn::Module {
  TiledTextImpl() {
    torch::manual_seed(3);
    embedding = register_module("embedding", torch::nn::Embedding(50, 16));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(16, 16));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(16, 50).bias(false)));
  }
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets) {
    at::Tensor x = embedding->forward(inputs);
    for (const auto& layer : *layers) {
      const auto part = [&](const at::Tensor& rows) {
        return torch::gelu(layer->as<torch::nn::Linear>()->forward(rows));
      };
      x = x + cox::tile(part, x, 1, 4);
    }
    return cox::tiled_cross_entropy(x, head->weight, targets, 4);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(TiledText);

// Returns the most waits of a step of a clipping Trainer. `look` gets the session in each step.
template <class Model>
std::uint64_t waits_of_trainer(
    const std::vector<std::string>& flags, Model model, cox::TrainerOptions options = {},
    cox::SessionOptions with = {},
    const std::function<void(const cox::Session&)>& look = [](const auto&) {}) {
  auto session = solo_session(flags, std::move(with));
  model->to(session.device());
  cox::AdamW optimizer(model->parameters(), {.lr = 0.01});
  options.clip_norm = 0.5;
  if (options.steps == cox::TrainerOptions().steps) options.steps = 14;
  cox::Trainer trainer(session, *model, optimizer, options);
  const auto loss_of = [&](const cox::Batch& batch) {
    return model->loss(batch.inputs, batch.targets);
  };
  const SmallText data;
  StepWaits waits;
  for (auto& step : trainer.steps(data)) {
    waits.next_step();
    look(session);
    if (options.micro_batch > 0) {
      step.accumulate(loss_of);
    } else {
      step.backward(step.forward([&] { return loss_of(step.batch()); }));
    }
    step.update();
  }
  waits.next_step();
  session.finish();
  return waits.most();
}

// A user's own loop that clips and reads each step's loss; with a LossScaler if losses are scaled.
enum class Scaling { none, losses };

// Whether losses become NaN from a middle step on.
enum class Losses { finite, end_in_nan };

// Returns the most waits of a step of the loop. `begin` gets the model before the first step.
inline std::uint64_t waits_of_own_loop(
    Scaling scaling, const std::function<void(torch::nn::Module&)>& begin = [](auto&) {},
    Losses losses = Losses::finite) {
  const at::Device device(at::kCUDA, 0);
  gpt2::Gpt2 model = small_gpt();
  model->to(device);
  begin(*model);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  cox::LossScaler scaler;
  const SmallText data;
  StepWaits waits;
  for (std::int64_t step = 0; step < 12; ++step) {
    waits.next_step();
    const std::vector<std::int64_t> rows = {step, step + 5};
    const cox::Batch batch = data.get(rows);
    const auto there = [&](const at::Tensor& tensor) {
      return tensor.pin_memory().to(device, true);
    };
    optimizer.zero_grad();
    at::Tensor loss = model->loss(there(batch.inputs), there(batch.targets));
    if (losses == Losses::end_in_nan && step == 8) loss = loss * NAN;
    (scaling == Scaling::losses ? scaler.scale(loss) : loss).backward();
    if (scaling == Scaling::losses) scaler.unscale(optimizer);
    cox::clip_by_global_norm(model->parameters(), 0.5);
    if (scaling == Scaling::losses) {
      scaler.step(optimizer);
      scaler.update();
    } else {
      optimizer.step();
    }
    const bool is_finite = std::isfinite(loss.item<double>());
    if (!is_finite && losses == Losses::finite) throw std::runtime_error("the loss is not finite");
  }
  waits.next_step();
  return waits.most();
}
