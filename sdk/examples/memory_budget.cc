// Training within a memory budget: six residual blocks, of which as many are recomputed as
// necessary. Quoted by docs/memory.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

// [block]
// Most of the memory for backward lies between the block's input and its output.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl()
      : up(register_module("up", torch::nn::Linear(64, 256))),
        down(register_module("down", torch::nn::Linear(256, 64))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }

  torch::nn::Linear up, down;
};
TORCH_MODULE(Residual);
// [/block]

// Sample i is a point on a line in 64 dimensions; the target is the point's sine.
class Waves final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 8192; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    auto x = torch::empty({static_cast<std::int64_t>(samples.size()), 1});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      x[static_cast<std::int64_t>(i)] = static_cast<double>(samples[i]) / 4096 - 1;
    }
    const auto inputs = x * torch::linspace(0.1, 3, 64);
    return {.inputs = inputs, .targets = torch::sin(inputs), .samples = x.size(0)};
  }
};

}  // namespace

// [main]
int main(int argc, char** argv) try {
  cox::SessionOptions options{.program = "memory_budget"};
  options.config.memory.budget = {.kind = cox::BudgetKind::bytes, .bytes = 10 << 20};
  auto session = cox::Session::start(argc, argv, options);  // --cox.memory.budget overrides it

  torch::nn::Sequential model;
  for (int i = 0; i < 6; ++i) model->push_back(Residual());
  cox::AdamW optimizer(model->parameters(), {.lr = 1e-3});
  cox::Trainer trainer(session, *model, optimizer, {.global_batch = 1024, .steps = 20});
  const Waves dataset;
  for (auto& step : trainer.steps(dataset)) {
    const auto& batch = step.batch();
    // The first call also measures the blocks and chooses the plan.
    const auto loss =
        step.forward([&] { return torch::mse_loss(model->forward(batch.inputs), batch.targets); });
    step.backward(loss);
    step.update();
  }
  if (session.rank() == 0) {
    const cox::SessionReport report = session.report();
    std::printf(
        "loss %.4f; peak %.1f MiB, %.1f MiB less than with every block kept, +%.0f %% time\n",
        trainer.progress().loss, static_cast<double>(report.memory_peak_bytes) / (1 << 20),
        static_cast<double>(report.memory_saved_bytes) / (1 << 20),
        100 * report.memory_added_ratio);
  }
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/main]
