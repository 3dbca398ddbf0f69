// A user's own program. Quoted by docs/use-it.md, and built by use_it.py as the page has it.
// [program]
#include <coxswain/coxswain.h>
#include <torch/torch.h>

#include <cstdio>

// Sample i is a point of a line. Tensors have the samples along dimension 0.
class Line final : public cox::Dataset {
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

int main(int argc, char** argv) try {
  cox::SessionOptions options{.program = "train"};
  options.config.run.log = cox::LogLevel::warning;  // settings from code: run.log,
  options.config.http.port = 0;                     // http.port (0: any free one)
  auto session = cox::Session::start(argc, argv, options);
  torch::manual_seed(1);  // the same first weights in every run
  torch::nn::Linear model(1, 1);
  cox::AdamW optimizer(model->parameters(), {.lr = 2e-2});
  cox::Trainer trainer(session, *model, optimizer, {.global_batch = 32, .steps = 200});
  const Line line;
  for (auto& step : trainer.steps(line)) {  // ends after SIGTERM or Ctrl-C, on all ranks
    const auto loss = step.forward(
        [&] { return torch::mse_loss(model(step.batch().inputs), step.batch().targets); });
    step.backward(loss);
    step.update();
  }
  const int ranks = session.world_size();
  if (session.rank() == 0) {
    std::printf("%d rank%s: loss %.4f\n", ranks, ranks == 1 ? "" : "s", trainer.progress().loss);
  }
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/program]
