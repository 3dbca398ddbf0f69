// OW, our side: a plain LibTorch loop, unchanged or adopted for watching only. ow_peer.py is the
// same loop in Python; ow.py starts both and gives them turns (orders.h).
//
//   bench_ow plain|watched PIPES [--cox.run.directory=DIR ...]
//
// Answers a turn with {"ms": [[data, forward, backward, optimizer] of each step]}.
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "coxswain/session.h"
#include "tests/bench/orders.h"
#include "tests/bench/session_main.h"

namespace {

using namespace cox;
using Clock = std::chrono::steady_clock;

constexpr int kWidth = 512, kRows = 128, kLayers = 6;

// The loss is the model's last module, so that forward ends after it on both sides.
struct MeanSquareImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& y) { return y.square().mean(); }
};
TORCH_MODULE(MeanSquare);

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::ReLU());
  }
  model->push_back(MeanSquare());
  return model;
}

// Imitates a data loader for some milliseconds.
at::Tensor draw_batch() {
  return std::get<0>(torch::randn({kRows, kWidth}).sort(1));
}

// The milliseconds of data, forward, backward and optimizer by this loop's own clock, as JSON.
std::string phases_of_step(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer) {
  std::array<Clock::time_point, 5> times;
  times[0] = Clock::now();
  optimizer.zero_grad();
  const at::Tensor x = draw_batch();
  times[1] = Clock::now();
  const at::Tensor loss = model->forward(x);
  times[2] = Clock::now();
  loss.backward();
  times[3] = Clock::now();
  optimizer.step();
  times[4] = Clock::now();
  std::string text;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const std::chrono::duration<double, std::milli> took = times[i] - times[i - 1];
    text += (i == 1 ? "[" : ", ") + std::to_string(took.count());
  }
  return text + "]";
}

void train(Session& session) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential model = make_model();
  if (session.arguments().at(0) == "watched") session.adopt(*model, {.only_watch = true});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  bench::take_turns(session.arguments().at(1) + "/0", [&](int steps) {
    std::string text;
    for (int i = 0; i < steps; ++i) text += (i == 0 ? "" : ", ") + phases_of_step(model, optimizer);
    return "{\"ms\": [" + text + "]}";
  });
  session.finish();
}

}  // namespace

int main(int argc, char** argv) {
  return cox::bench::session_main(argc, argv, {.program = "bench_ow"}, train);
}
