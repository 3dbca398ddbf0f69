// F3 and F4, our side: a loop of two lines and a third, as a program would have it.
//
//   bench_saves continue  saves after six steps, and takes three more
//   bench_saves steps     times steps with and without saves
//   bench_saves save      times the start of a Trainer, and a save that its loop waits for
//   bench_saves load      times the start of a Trainer that resumes from the save
//
// All with --cox.checkpoint.directory=DIR and, for a smaller model, --quick. Each rank prints a
// line of JSON. f3.py and f3_peer.py continue from the save in Python.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"

namespace {

using namespace cox;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 4096;  // a layer has 16.8 million parameters
constexpr std::int64_t kRows = 24, kInputs = 8, kSavedSteps = 6, kMoreSteps = 3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string list_of(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%s%.9g", text.empty() ? "" : ", ", value);
    text += digits;
  }
  return "[" + text + "]";
}

// Returns this rank's rows of a step's batch; f3_peer.py has the same.
at::Tensor batch_of(std::int64_t step, const Session& session) {
  const at::Tensor all = torch::sin(torch::arange(kRows * kInputs, torch::kDouble) * 0.37 *
                                    static_cast<double>(step + 1));
  const std::int64_t rows = kRows / session.world_size();
  return all.to(torch::kFloat).view({kRows, kInputs}).narrow(0, session.rank() * rows, rows);
}

std::vector<torch::optim::OptimizerParamGroup> groups_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> weights, biases;
  for (const auto& each : model.named_parameters())
    (each.key().ends_with("weight") ? weights : biases).push_back(each.value());
  return {torch::optim::OptimizerParamGroup(
              weights, std::make_unique<torch::optim::AdamWOptions>(
                           torch::optim::AdamWOptions(0.01).weight_decay(0.1))),
          torch::optim::OptimizerParamGroup(biases,
                                            std::make_unique<torch::optim::AdamWOptions>(
                                                torch::optim::AdamWOptions(0.02).weight_decay(0)))};
}

// Prints the losses of the steps after the save, of this rank's rows.
void go_on(Session& session) {
  torch::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Linear(kInputs, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 1));
  torch::optim::AdamW optimizer(groups_of(*model), torch::optim::AdamWOptions(0.01));
  session.adopt(*model);
  std::vector<double> losses;
  std::int64_t epoch = 0, step = 0;
  for (; step < kSavedSteps + kMoreSteps; ++step) {
    session.keep(optimizer, epoch, step);
    const at::Tensor x = batch_of(step, session);
    optimizer.zero_grad();
    const at::Tensor loss = (model->forward(x) - x.sum(1, true)).square().mean();
    loss.backward();
    optimizer.step();
    if (step >= kSavedSteps) losses.push_back(loss.item<double>());
  }
  session.finish();
  std::printf("{\"rank\": %d, \"losses\": %s}\n", session.rank(), list_of(losses).c_str());
}

// Times blocks of steps in turn, every other one with a save at its beginning. Only those blocks
// call the third line; checkpoint.every_steps is two blocks.
void time_steps(Session& session, std::int64_t block_steps, int pairs) {
  const int layers = block_steps < 50 ? 2 : 6;
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-5));
  session.adopt(*model);
  const at::Tensor x = torch::randn({8, kWidth});
  std::vector<double> plain, saving, longest;
  std::int64_t epoch = 0, step = 0;
  for (int block = 0; block < 2 * pairs + 1; ++block) {
    const bool saves = block % 2 == 0;
    const Clock::time_point start = Clock::now();
    double most = 0;
    for (std::int64_t i = 0; i < block_steps; ++i, ++step) {
      const Clock::time_point began = Clock::now();
      if (saves) session.keep(optimizer, epoch, step);
      optimizer.zero_grad();
      model->forward(x).square().mean().backward();
      optimizer.step();
      most = std::max(most, seconds_since(began));
    }
    if (block == 0) continue;  // the first steps allocate their memory
    (saves ? saving : plain).push_back(seconds_since(start) / static_cast<double>(block_steps));
    if (saves) longest.push_back(most);
  }
  session.finish();
  std::printf(
      "{\"rank\": %d, \"parameters\": %lld, \"plain_s\": %s, \"saving_s\": %s, "
      "\"longest_s\": %s}\n",
      session.rank(), static_cast<long long>(layers * (kWidth * kWidth + kWidth)),
      list_of(plain).c_str(), list_of(saving).c_str(), list_of(longest).c_str());
}

// Times the start of a Trainer, which resumes if there is a save, and a save by it.
void time_disk(Session& session, int layers, bool loads) {
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-5));
  if (!loads) {
    model->forward(torch::randn({8, kWidth})).square().mean().backward();
    optimizer.step();
  }
  const Clock::time_point start = Clock::now();
  Trainer trainer(session, *model, optimizer, {.steps = 1});
  const double started = seconds_since(start);
  if (!loads) trainer.save();
  std::printf("{\"rank\": %d, \"start_s\": %.6f, \"save_s\": %.6f}\n", session.rank(), started,
              seconds_since(start) - started);
}

}  // namespace

int main(int argc, char** argv) try {
  const auto has = [&](std::string_view word) {
    return std::any_of(argv + 1, argv + argc, [&](const char* each) { return each == word; });
  };
  const bool is_quick = has("--quick"), continues = has("continue"), loads = has("load");
  const std::int64_t block_steps = is_quick ? 10 : 50;
  const std::int64_t every = continues ? kSavedSteps : 2 * block_steps;
  std::string flag = loads ? std::string("--cox.checkpoint.resume=on")
                           : "--cox.checkpoint.every_steps=" + std::to_string(every);
  std::vector<char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, flag.data());
  arguments.push_back(nullptr);
  auto session = Session::start(argc + 1, arguments.data(), {.program = "bench_saves"});
  if (continues) {
    go_on(session);
  } else if (loads || has("save")) {
    time_disk(session, is_quick ? 2 : 6, loads);
  } else {
    time_steps(session, block_steps, is_quick ? 2 : 5);
  }
} catch (const std::exception& error) {
  return cox::report(error);
}
