// One rank of a job whose ranks may act differently, for mixed.py:
//   e2e_mixed LOOP [--absent SECONDS] [--late SECONDS [--late-at STEP]] [--together-at STEP]
//             [--leave-at STEP [--leave-by return|exit|finish|throw]] [--save-at STEP]
//             [--width N] [--batch N] [--steps N]
// LOOP: trainer, accumulating, fit, reducer, manual, scaler, adopted, watching, together, idle.
// --absent sleeps before Session::start; --late sleeps after Session::start: before the loop, or at
// the step of --late-at.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"

namespace {

struct Options {
  std::string loop;
  double absent_seconds = 0;
  double late_seconds = 0;
  int late_at = -1;
  int leave_at = -1;
  std::string leave_by = "return";
  int together_at = -1;
  int save_at = -1;
  int steps = 300;
  std::int64_t width = 4;
  std::int64_t batch = 8;
};

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  options.loop = arguments.at(0);
  for (std::size_t i = 1; i + 1 < arguments.size(); i += 2) {
    const std::string& value = arguments[i + 1];
    if (arguments[i] == "--absent") options.absent_seconds = std::stod(value);
    if (arguments[i] == "--late") options.late_seconds = std::stod(value);
    if (arguments[i] == "--late-at") options.late_at = std::stoi(value);
    if (arguments[i] == "--leave-at") options.leave_at = std::stoi(value);
    if (arguments[i] == "--leave-by") options.leave_by = value;
    if (arguments[i] == "--together-at") options.together_at = std::stoi(value);
    if (arguments[i] == "--save-at") options.save_at = std::stoi(value);
    if (arguments[i] == "--steps") options.steps = std::stoi(value);
    if (arguments[i] == "--width") options.width = std::stoll(value);
    if (arguments[i] == "--batch") options.batch = std::stoll(value);
  }
  return options;
}

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class Numbers final : public cox::Dataset {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    return {
        .inputs = torch::ones({count, 2}), .targets = torch::zeros({count, 1}), .samples = count};
  }

 private:
  std::int64_t size_;
};

// One rank's part: session, model, and faults between steps.
struct Rank {
  cox::Session& session;
  const Options& options;
  torch::nn::Sequential model = torch::nn::Sequential(
      torch::nn::Linear(2, options.width), torch::nn::ReLU(), torch::nn::Linear(options.width, 1));
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.01)};

  torch::Tensor loss() {
    return torch::mse_loss(model->forward(torch::ones({4, 2})), torch::zeros({4, 1}));
  }
  at::Tensor loss_of(const cox::Batch& batch) {
    return torch::mse_loss(model->forward(batch.inputs), batch.targets);
  }
  // Returns whether the rank goes on.
  bool between(int step) {
    sleep(0.005);
    if (step == options.late_at) sleep(options.late_seconds);
    if (step == options.together_at) session.together([] {});
    if (step != options.leave_at) return true;
    if (options.leave_by == "exit") std::exit(0);
    if (options.leave_by == "throw") throw std::runtime_error("the rank leaves its loop");
    if (options.leave_by == "finish") session.finish();
    return false;
  }
};

template <class MakeGradients>
void run_with_trainer(Rank& rank, std::int64_t micro_batch, const MakeGradients& make_gradients) {
  cox::Trainer trainer(rank.session, *rank.model, rank.optimizer,
                       {.global_batch = rank.options.batch,
                        .micro_batch = micro_batch,
                        .steps = static_cast<std::uint64_t>(rank.options.steps)});
  const Numbers data(1 << 14);
  int number = 0;
  for (auto& step : trainer.steps(data)) {
    make_gradients(step);
    step.update();
    if (number == rank.options.save_at) trainer.save();
    if (!rank.between(number++)) return;
  }
}

void run_trainer(Rank& rank) {
  run_with_trainer(rank, 0, [&](cox::TrainerStep& step) {
    step.backward(step.forward([&] { return rank.loss_of(step.batch()); }));
  });
}

void run_accumulating(Rank& rank) {
  run_with_trainer(rank, 1, [&](cox::TrainerStep& step) {
    step.accumulate([&](const cox::Batch& batch) { return rank.loss_of(batch); });
  });
}

// Only an exception ends fit on one rank.
void run_fit(Rank& rank) {
  const Numbers data(rank.options.batch * rank.options.steps / 3);
  const Numbers evaluation(64);
  cox::FitOptions options{.epochs = 3, .global_batch = rank.options.batch};
  options.evaluation = &evaluation;
  options.on_step = [&](const cox::FitStep& step) {
    if (!rank.between(static_cast<int>(step.step)))
      throw std::runtime_error("the rank leaves its fit");
  };
  cox::fit(
      rank.session, *rank.model, rank.optimizer, data,
      [&](const cox::Batch& batch) { return rank.loss_of(batch); }, options);
}

void run_reducer(Rank& rank) {
  cox::Reducer reducer(rank.session, rank.model->parameters(), rank.model->buffers());
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) {
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
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) {
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
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) {
    rank.optimizer.zero_grad();
    rank.loss().backward();
    rank.optimizer.step();
  }
}

void run_watching(Rank& rank) {
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) {
    auto step = rank.session.step();
    rank.optimizer.zero_grad();
    rank.loss().backward();
    rank.optimizer.step();
  }
}

void run_scaler(Rank& rank) {
  cox::LossScaler scaler(rank.session);
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) {
    auto step = rank.session.step();
    rank.optimizer.zero_grad();
    scaler.scale(rank.loss()).backward();
    scaler.step(rank.optimizer);
    scaler.update();
  }
}

void run_together(Rank& rank) {
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) rank.session.together([] {});
}

void run_idle(Rank& rank) {
  for (int i = 0; i < rank.options.steps && rank.between(i); ++i) continue;
}

}  // namespace

int main(int argc, char** argv) try {
  sleep(parse({argv + 1, argv + argc}).absent_seconds);
  auto session = cox::Session::start(argc, argv, {.program = "mixed"});
  at::set_num_threads(1);
  const Options options = parse(session.arguments());
  const std::map<std::string, std::function<void(Rank&)>> loops = {
      {"trainer", run_trainer},   {"accumulating", run_accumulating},
      {"fit", run_fit},           {"reducer", run_reducer},
      {"manual", run_manual},     {"scaler", run_scaler},
      {"adopted", run_adopted},   {"watching", run_watching},
      {"together", run_together}, {"idle", run_idle}};
  if (options.late_at < 0) sleep(options.late_seconds);
  Rank rank{session, options};
  loops.at(options.loop)(rank);
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
