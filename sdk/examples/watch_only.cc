// Watches a loop that does everything else by itself. Quoted by docs/watching.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/session.h"

// [loop]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "watch_only"});
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  double last_loss = 0;
  for (int i = 0; i < 50; ++i) {
    auto step = session.step();  // opens the step; its end of scope reports it
    torch::Tensor x, loss;
    {
      auto data = step.phase(cox::Phase::data);
      x = torch::randn({16, 8});
    }
    {
      auto forward = step.phase(cox::Phase::forward);
      loss = torch::mse_loss(model(x), x.sum(1, true));
    }
    {
      auto backward = step.phase(cox::Phase::backward);
      optimizer.zero_grad();
      loss.backward();
    }
    auto update = step.phase(cox::Phase::optimizer);
    optimizer.step();
    last_loss = loss.item<double>();
    step.samples(16);
    step.loss(last_loss, 16);                                 // this rank's mean over 16 samples
    step.log("weight", model->weight.mean().item<double>());  // a scalar for the run directory
    if (session.stop_requested()) break;                      // SIGTERM or Ctrl-C
  }
  session.finish();  // waits until all ranks are done
  std::printf("rank %d: loss %.4f\n", session.rank(), last_loss);
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/loop]
