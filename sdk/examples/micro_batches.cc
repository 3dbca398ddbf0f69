// A trainer whose batch is computed in micro-batches. Shares may then follow the machines and, with
// reduction.reproducible=on, change no bit. Quoted by docs/data-parallel.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

class Lines final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 1024; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    auto x = torch::empty({static_cast<std::int64_t>(samples.size()), 1});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      x[static_cast<std::int64_t>(i)] = static_cast<double>(samples[i]) / 512 - 1;
    }
    return {.inputs = x, .targets = 2 * x + 1, .samples = x.size(0)};
  }
};

}  // namespace

// [loop]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv);
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(16, 1));
  cox::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  cox::Trainer trainer(session, *model, optimizer,
                       {.global_batch = 32, .micro_batch = 4, .steps = 100, .clip_norm = 1});
  const Lines dataset;
  for (auto& step : trainer.steps(dataset)) {
    step.accumulate([&](const cox::Batch& batch) {  // once for each micro-batch of this rank
      return torch::mse_loss(model->forward(batch.inputs), batch.targets);
    });
    step.update();  // one average of all micro-batches of all ranks
  }
  if (session.rank() == 0) std::printf("loss %.4f\n", trainer.progress().loss);
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/loop]
