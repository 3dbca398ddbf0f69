// A rank of a job whose ranks need not do the same, for mixed.py:
//   e2e_mixed LOOP [--late SECONDS] [--leave-at STEP] [--together-at STEP] [--width N]
// LOOP: trainer, reducer, manual, adopted, watching, together, idle.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "coxswain/coxswain.h"

namespace {

constexpr int kSteps = 400;

struct Options {
  std::string loop;
  double late_seconds = 0;
  int leave_at = -1;
  int together_at = -1;
  std::int64_t width = 4;
};

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  options.loop = arguments.at(0);
  for (std::size_t i = 1; i + 1 < arguments.size(); i += 2) {
    const std::string& value = arguments[i + 1];
    if (arguments[i] == "--late") options.late_seconds = std::stod(value);
    if (arguments[i] == "--leave-at") options.leave_at = std::stoi(value);
    if (arguments[i] == "--together-at") options.together_at = std::stoi(value);
    if (arguments[i] == "--width") options.width = std::stoll(value);
  }
  return options;
}

class Numbers final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 1 << 14; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    return {
        .inputs = torch::ones({count, 2}), .targets = torch::zeros({count, 1}), .samples = count};
  }
};

// One rank's part: its session, its model, and what it does wrong between its steps.
struct Rank {
  cox::Session& session;
  const Options& options;
  torch::nn::Sequential model = torch::nn::Sequential(
      torch::nn::Linear(2, options.width), torch::nn::ReLU(), torch::nn::Linear(options.width, 1));
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.01)};

  torch::Tensor loss() {
    return torch::mse_loss(model->forward(torch::ones({4, 2})), torch::zeros({4, 1}));
  }
  // Returns whether the rank goes on.
  bool between(int step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (step == options.together_at) session.together([] {});
    return step != options.leave_at;
  }
};

void run_trainer(Rank& rank) {
  cox::Trainer trainer(rank.session, *rank.model, rank.optimizer,
                       {.global_batch = 8, .steps = kSteps});
  const Numbers data;
  int number = 0;
  for (auto& step : trainer.steps(data)) {
    const auto& batch = step.batch();
    step.backward(step.forward(
        [&] { return torch::mse_loss(rank.model->forward(batch.inputs), batch.targets); }));
    step.update();
    if (!rank.between(number++)) return;
  }
}

void run_reducer(Rank& rank) {
  cox::Reducer reducer(rank.session, rank.model->parameters(), rank.model->buffers());
  for (int i = 0; i < kSteps && rank.between(i); ++i) {
    auto step = rank.session.step();
    rank.optimizer.zero_grad();
    reducer.backward(step, rank.loss(), 4);
    static_cast<void>(reducer.average(step));
    rank.optimizer.step();
  }
}

void run_manual(Rank& rank) {
  cox::ManualParallel ranks(rank.session);
  ranks.sync_parameters(rank.model->parameters());
  for (int i = 0; i < kSteps && rank.between(i); ++i) {
    auto step = rank.session.step();
    rank.optimizer.zero_grad();
    ranks.backward(step, rank.loss());
    static_cast<void>(ranks.all_reduce_gradients(step, rank.model->parameters()));
    rank.optimizer.step();
    static_cast<void>(ranks.close(step));
  }
}

void run_adopted(Rank& rank) {
  rank.session.adopt(*rank.model);
  for (int i = 0; i < kSteps && rank.between(i); ++i) {
    rank.optimizer.zero_grad();
    rank.loss().backward();
    rank.optimizer.step();
  }
}

void run_watching(Rank& rank) {
  for (int i = 0; i < kSteps && rank.between(i); ++i) {
    auto step = rank.session.step();
    rank.optimizer.zero_grad();
    rank.loss().backward();
    rank.optimizer.step();
  }
}

void run_together(Rank& rank) {
  for (int i = 0; i < kSteps && rank.between(i); ++i) rank.session.together([] {});
}

void run_idle(Rank& rank) {
  for (int i = 0; i < kSteps && rank.between(i); ++i) continue;
}

}  // namespace

int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "mixed"});
  at::set_num_threads(1);
  const Options options = parse(session.arguments());
  const std::map<std::string, std::function<void(Rank&)>> loops = {
      {"trainer", run_trainer}, {"reducer", run_reducer},   {"manual", run_manual},
      {"adopted", run_adopted}, {"watching", run_watching}, {"together", run_together},
      {"idle", run_idle}};
  std::this_thread::sleep_for(std::chrono::duration<double>(options.late_seconds));
  Rank rank{session, options};
  loops.at(options.loop)(rank);
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
