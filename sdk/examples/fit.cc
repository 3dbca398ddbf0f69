// No loop at all: the framework owns data, epochs and checkpoints, and returns the final state.
// Quoted by docs/data-parallel.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

// Points of a parabola; every fourth one is held out.
class Parabola final : public cox::Dataset {
 public:
  enum class Part { training, held_out };
  explicit Parabola(Part part) : part_(part) {}
  std::int64_t size() const override { return part_ == Part::training ? 768 : 256; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    auto x = torch::empty({static_cast<std::int64_t>(samples.size()), 1});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::int64_t s = samples[i];
      const std::int64_t place = part_ == Part::training ? s + s / 3 : 4 * s + 3;
      x[static_cast<std::int64_t>(i)] = static_cast<double>(place) / 512 - 1;
    }
    return {.inputs = x, .targets = x * x, .samples = x.size(0)};
  }

 private:
  Part part_;
};

}  // namespace

// [fit]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "fit"});
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(1, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  cox::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  const Parabola training(Parabola::Part::training);
  const Parabola held_out(Parabola::Part::held_out);
  cox::FitOptions options{.epochs = 8, .global_batch = 32, .evaluation = &held_out};
  options.on_epoch = [&](const cox::FitEpoch& epoch) {  // equal numbers on all ranks
    return *epoch.evaluation_loss < 1e-4 ? cox::FitNext::stop : cox::FitNext::go_on;
  };
  const cox::FitResult result = cox::fit(
      session, *model, optimizer, training,
      [&](const cox::Batch& batch) {
        return torch::mse_loss(model->forward(batch.inputs), batch.targets);
      },
      options);  // saves and resumes as checkpoint.directory and checkpoint.resume say
  session.finish();
  if (session.rank() == 0 && !result.epochs.empty()) {  // SIGTERM may come before an epoch ends
    std::printf("%zu epochs, loss %.5f on the held-out data\n", result.epochs.size(),
                *result.epochs.back().evaluation_loss);
  }
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/fit]
