// An adopted loop that is saved, and continues from its save. Quoted by docs/checkpoints.md.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

// Points of a plane, and whether each lies within the unit circle.
struct Points {
  torch::Tensor at, inside;
};
Points draw(std::int64_t count) {
  const auto at = torch::randn({count, 2});
  return {at, (at.square().sum(1, true) < 1).to(torch::kFloat)};
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 1));
}

}  // namespace

// [loop]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "keep"});
  torch::nn::Sequential model = make_net();
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.02));
  torch::optim::StepLR schedule(optimizer, 2, 0.5);
  session.adopt(*model);
  session.add_state("schedule", schedule);
  torch::manual_seed(static_cast<std::uint64_t>(session.rank()));

  double last_loss = 0;
  std::int64_t epoch = 0, batch = 0;
  for (; epoch < 6; ++epoch, batch = 0) {
    for (; batch < 20; ++batch) {
      session.keep(optimizer, epoch, batch);  // the third line
      const Points points = draw(64);
      optimizer.zero_grad();
      const auto loss =
          torch::binary_cross_entropy_with_logits(model->forward(points.at), points.inside);
      loss.backward();
      optimizer.step();
      last_loss = loss.item<double>();
    }
    schedule.step();
  }
  session.finish();
  std::printf("rank %d: loss %.4f\n", session.rank(), last_loss);
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/loop]
