// A small GPT-2 and made-up text for training on a device and on the CPU, and the results.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/trainer.h"
#include "sdk/examples/gpt2/model.h"
#include "stand_in_counts.h"
#include "tests/sdk/session/solo.h"

// Sample i depends on i alone.
class SmallText final : public cox::Dataset {
 public:
  static constexpr std::int64_t kLength = 16;
  std::int64_t size() const override { return 24; }
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    cox::Batch batch{torch::zeros({rows, kLength}, torch::kLong),
                     torch::zeros({rows, kLength}, torch::kLong), rows};
    for (std::int64_t r = 0; r < rows; ++r) {
      const at::Tensor line = torch::arange(kLength + 1) * 7 + indices[static_cast<std::size_t>(r)];
      batch.inputs[r] = line.narrow(0, 0, kLength).remainder(50);
      batch.targets[r] = line.narrow(0, 1, kLength).remainder(50);
    }
    return batch;
  }
};

inline gpt2::Gpt2 small_gpt(double dropout = 0, std::int64_t vocabulary = 50) {
  torch::manual_seed(3);
  gpt2::Config config;
  config.vocab_size = vocabulary;
  config.n_positions = SmallText::kLength;
  config.n_embd = 32;
  config.n_layer = 3;
  config.n_head = 2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = dropout;
  return gpt2::Gpt2(config);
}

inline cox::TrainerOptions steps(std::uint64_t count) {
  cox::TrainerOptions options;
  options.steps = count;
  return options;
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;  // on the CPU
  std::uint64_t skipped = 0;
};

inline std::vector<at::Tensor> on_cpu(const torch::nn::Module& model) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& each : model.parameters()) tensors.push_back(each.detach().cpu());
  return tensors;
}

inline std::size_t count_unequal(const std::vector<at::Tensor>& a,
                                 const std::vector<at::Tensor>& b) {
  std::size_t unequal = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) unequal += !a[i].equal(b[i]);
  return unequal;
}

// Returns whether a training on a device equals the CPU's: to the last bit on the stand-ins; on a
// GPU, whose kernels add in another order, by losses within the relative `tolerance`.
inline bool is_alike(const Trained& there, const Trained& here, double tolerance = 1e-4) {
  if (there.losses.size() != here.losses.size()) return false;
  if (on_stand_in())
    return there.losses == here.losses && count_unequal(there.parameters, here.parameters) == 0;
  for (std::size_t i = 0; i < here.losses.size(); ++i) {
    if (!(std::abs(there.losses[i] - here.losses[i]) <= tolerance * std::abs(here.losses[i])))
      return false;
  }
  return true;
}
constexpr double kNarrowTolerance = 2e-3;  // for bf16 and fp16

struct Training {
  std::vector<std::string> flags{};
  cox::TrainerOptions options{};
  double dropout = 0;
  std::int64_t vocabulary = 50;
};

// Trains on "cpu" or "cuda".
inline Trained train_on(const std::string& device, const Training& training) {
  std::vector<std::string> flags = training.flags;
  flags.push_back("--cox.run.device=" + device);
  auto session = solo_session(flags);
  gpt2::Gpt2 model = small_gpt(training.dropout, training.vocabulary);
  model->to(session.device());
  cox::AdamW optimizer(model->parameters(), {.lr = 0.01});
  cox::Trainer trainer(session, *model, optimizer, training.options);
  const SmallText data;
  Trained outcome;
  for (auto& step : trainer.steps(data)) {
    const auto loss_of = [&](const cox::Batch& batch) {
      return model->loss(batch.inputs, batch.targets);
    };
    if (training.options.micro_batch > 0) {
      step.accumulate(loss_of);
    } else {
      step.backward(step.forward([&] { return loss_of(step.batch()); }));
    }
    step.update();
    outcome.losses.push_back(trainer.progress().loss);
  }
  session.finish();
  outcome.skipped = trainer.progress().skipped;
  outcome.parameters = on_cpu(*model);
  return outcome;
}
