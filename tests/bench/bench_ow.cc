// OW, our side: a plain LibTorch loop, as it is or adopted to be watched only. ow_peer.py is the
// same loop in Python; ow.py starts both.
//
//   bench_ow plain|watched STEPS [--cox.run.directory=DIR ...]
//
// Prints the milliseconds of every step but the first ten, as a JSON array.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "coxswain/session.h"
#include "tests/bench/session_main.h"

namespace {

using namespace cox;
using Clock = std::chrono::steady_clock;

constexpr int kWidth = 768, kRows = 256, kLayers = 6, kWarmupSteps = 10;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

// What a data loader would do: some milliseconds.
at::Tensor draw_batch() {
  return std::get<0>(torch::randn({kRows, kWidth}).sort(1));
}

void train(Session& session) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential model = make_model();
  if (session.arguments().at(0) == "watched") session.adopt(*model, {.only_watch = true});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const int steps = std::stoi(session.arguments().at(1));
  std::string text;
  for (int i = 0; i < steps; ++i) {
    const auto began = Clock::now();
    const at::Tensor x = draw_batch();
    const at::Tensor loss = torch::mse_loss(model->forward(x), x);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    const std::chrono::duration<double, std::milli> took = Clock::now() - began;
    if (i < kWarmupSteps) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(took.count());
  }
  session.finish();
  std::printf("[%s]\n", text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return cox::bench::session_main(argc, argv, {.program = "bench_ow"}, train);
}
