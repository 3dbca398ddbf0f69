// The whole loop with Trainer: fits a sine. Quoted by README.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

// [dataset]
// Sample i is a point of a sine wave. Tensors have the samples along dimension 0.
class Sine final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 4096; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    auto x = torch::empty({static_cast<std::int64_t>(samples.size()), 1});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      x[static_cast<std::int64_t>(i)] = static_cast<double>(samples[i]) / 2048 - 1;
    }
    return {.inputs = x, .targets = torch::sin(3 * x), .samples = x.size(0)};
  }
};
// [/dataset]

}  // namespace

// [trainer]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv);  // joins the job; rank 0 hosts the coordinator
  torch::nn::Sequential model(torch::nn::Linear(1, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  cox::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  cox::Trainer trainer(session, *model, optimizer, {.global_batch = 64, .steps = 200});
  const Sine dataset;
  for (auto& step : trainer.steps(dataset)) {  // step.batch() is this rank's share
    const auto& batch = step.batch();
    const auto loss =
        step.forward([&] { return torch::mse_loss(model->forward(batch.inputs), batch.targets); });
    step.backward(loss);
    step.update();  // averages over ranks, then updates or skips, equally on all of them
  }
  if (session.rank() == 0) std::printf("loss %.4f\n", trainer.progress().loss);
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/trainer]
