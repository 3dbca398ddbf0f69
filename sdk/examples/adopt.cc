// A loop that was written without Coxswain, and the two lines that let the loop join a job.
// Quoted by docs/adopt.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

// An image with a bright row (class 0) or a bright column (class 1), under noise.
struct Images {
  torch::Tensor pixels, classes;
};
Images draw(std::int64_t count) {
  const auto classes = torch::randint(2, {count}, torch::kLong);
  auto pixels = torch::randn({count, 1, 8, 8}) * 0.5;
  for (std::int64_t i = 0; i < count; ++i) {
    pixels[i][0].select(classes[i].item<std::int64_t>(), i % 8).add_(2);
  }
  return {pixels, classes};
}

// [model]
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(i == 0 ? 1 : 8, 8, 3).padding(1)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      x = torch::relu(layer->as<torch::nn::Conv2d>()->forward(x));
    }
    return head(norm(x).amax({2, 3}));
  }
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(8))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 2))};
};
TORCH_MODULE(Net);
// [/model]

}  // namespace

// [loop]
int main(int argc, char** argv) try {
  Net model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  auto session = cox::Session::start(argc, argv, {.program = "adopt"});  // the first line
  session.adopt(*model);                                                 // the second line
  torch::manual_seed(static_cast<std::uint64_t>(session.rank()));        // other data on each rank

  double last_loss = 0;
  for (int i = 0; i < 60; ++i) {
    const Images batch = draw(16);
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(batch.pixels), batch.classes);
    loss.backward();   // leaves the mean over all ranks in .grad
    optimizer.step();  // so all ranks make the same update
    last_loss = loss.item<double>();
  }
  session.finish();
  std::printf("rank %d: loss %.4f\n", session.rank(), last_loss);
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/loop]
