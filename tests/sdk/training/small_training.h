// Shared parts of the trainer's tests: a small model with dropout, a data set that records its
// requests, and short names for training.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/trainer.h"

struct SmallModelImpl : torch::nn::Module {
  explicit SmallModelImpl(std::uint64_t seed = 5) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
    calls = register_buffer("calls", torch::zeros({}, torch::kLong));
  }
  at::Tensor loss(const cox::Batch& batch) {
    if (is_training()) calls.add_(1);
    auto hidden = torch::tanh(first(batch.inputs));
    hidden = torch::dropout(hidden, 0.2, is_training());
    return torch::mse_loss(second(hidden), batch.targets);
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor calls;
};
TORCH_MODULE(SmallModel);

// Sample i depends on i alone.
class SmallData final : public cox::Dataset {
 public:
  explicit SmallData(std::int64_t size = 20) : size_(size) {}
  std::int64_t size() const override { return size_; }
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    asked.emplace_back(indices.begin(), indices.end());
    const auto rows = static_cast<std::int64_t>(indices.size());
    cox::Batch batch{torch::zeros({rows, 6}), torch::zeros({rows, 3}), rows};
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<double>(indices[static_cast<std::size_t>(r)]);
      batch.inputs[r] = torch::sin(torch::arange(6, torch::kFloat) * 0.7 + i);
      batch.targets[r] = torch::cos(torch::arange(3, torch::kFloat) * 1.3 - i);
    }
    return batch;
  }
  mutable std::vector<std::vector<std::int64_t>> asked;  // by step

 private:
  std::int64_t size_;
};

// Changes the loss of a step before backward.
using Distortion = std::function<at::Tensor(std::uint64_t step, at::Tensor loss)>;

// Runs the trainer's loop. Returns the loss of every step.
inline std::vector<double> train(cox::Trainer& trainer, SmallModel& model, const SmallData& data,
                                 const Distortion& distort = {}) {
  std::vector<double> losses;
  auto steps = trainer.steps(data);
  data.asked.clear();  // drops the trainer's own checks of samples
  for (auto& step : steps) {
    auto loss = step.forward([&] { return model->loss(step.batch()); });
    if (distort && loss.defined()) loss = distort(step.number(), loss);
    step.backward(loss);
    step.update();
    losses.push_back(trainer.progress().loss);
  }
  return losses;
}

// Returns the error of `work`; empty if there is none.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const cox::Error& error) {
    return error.status().message();
  }
  return {};
}

inline bool equal_models(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto equal = [](const auto& x, const auto& y) {
    bool all = x.size() == y.size();
    for (std::size_t i = 0; all && i < x.size(); ++i) all = torch::equal(x[i], y[i]);
    return all;
  };
  return equal(a.parameters(), b.parameters()) && equal(a.buffers(), b.buffers());
}
