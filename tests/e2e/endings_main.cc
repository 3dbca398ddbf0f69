// A loop that ends in one of many ways, for endings.py:
//   e2e_endings own|trainer|adopted|watched STEPS [--leave RANKS STEP WAY] [--shift RANK STEP]
//               [--break RANK STEP] [--after RANKS 0]
// --leave: RANKS ("all" or "0,2") leave the loop after STEP by WAY: exit0, exit3, _exit0, _exit3,
// quick_exit0, kill, finalize (MPI_Finalize within the session), return or throw. --shift: the rank
// adds to a weight after the update of STEP. --break: the rank's weight is not finite after the
// update. --after: the ranks add to a weight after their loop.
#include <mpi.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "coxswain/coxswain.h"

namespace {

constexpr std::uint64_t kNever = ~0ull;

struct Event {
  std::string ranks;  // "all", or numbers separated by commas
  std::uint64_t after_step = kNever;
  std::string way;

  bool is_of(int rank) const {
    return ranks == "all" ||
           ("," + ranks + ",").find("," + std::to_string(rank) + ",") != std::string::npos;
  }
  bool is_due(int rank, std::uint64_t step) const { return step == after_step && is_of(rank); }
};

struct Options {
  std::string loop;
  std::uint64_t steps = 0;
  Event leave;
  Event shift;
  Event spoil;
  Event after;
};

Options options_of(const std::vector<std::string>& given) {
  Options options;
  options.loop = given.at(0);
  options.steps = std::stoull(given.at(1));
  for (std::size_t i = 2; i < given.size(); i += 3) {
    const Event event{given.at(i + 1), std::stoull(given.at(i + 2)), {}};
    if (given[i] == "--shift") options.shift = event;
    if (given[i] == "--break") options.spoil = event;
    if (given[i] == "--after") options.after = event;
    if (given[i] != "--leave") continue;
    options.leave = event;
    options.leave.way = given.at(i + 3);
    ++i;
  }
  return options;
}

struct Task {
  torch::nn::Sequential model{torch::nn::Linear(16, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1)};
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.01)};

  torch::Tensor loss() {
    const torch::Tensor x = torch::randn({8, 16});
    return torch::mse_loss(model->forward(x), x.sum(1, true));
  }
};

// Returns whether to leave the loop.
bool leaves(const Event& event) {
  std::fprintf(stderr, "leaves by %s\n", event.way.c_str());
  if (event.way == "exit0") std::exit(0);
  if (event.way == "exit3") std::exit(3);
  if (event.way == "_exit0") ::_exit(0);
  if (event.way == "_exit3") ::_exit(3);
  if (event.way == "quick_exit0") std::quick_exit(0);
  if (event.way == "kill") std::raise(SIGKILL);
  if (event.way == "finalize") MPI_Finalize();
  if (event.way == "throw") throw std::runtime_error("thrown on purpose");
  return true;
}

// Runs after the update of a step. Returns whether to leave the loop.
bool meddle(const Options& options, int rank, std::uint64_t step, Task& task) {
  const torch::NoGradGuard guard;
  torch::Tensor weight = task.model->parameters().front();
  if (options.shift.is_due(rank, step)) weight.add_(0.001);
  if (options.spoil.is_due(rank, step)) weight.fill_(std::numeric_limits<float>::quiet_NaN());
  return options.leave.is_due(rank, step) && leaves(options.leave);
}

void use_at_the_end(const Options& options, int rank, Task& task) {
  const torch::NoGradGuard guard;
  if (options.after.is_due(rank, 0)) task.model->parameters().front().add_(1);
}

void train_own(cox::Session& session, const Options& options, Task& task) {
  cox::Reducer reducer(session, *task.model);
  for (std::uint64_t i = 0; i < options.steps; ++i) {
    cox::StepScope step = session.step();
    reducer.backward(step, task.loss(), 8);
    const cox::ReductionOutcome outcome = reducer.average(step);
    task.optimizer.step();
    task.optimizer.zero_grad();
    if (outcome.stop || meddle(options, session.rank(), i, task)) return;
  }
  use_at_the_end(options, session.rank(), task);
}

class Numbers final : public cox::Dataset {
 public:
  std::int64_t size() const override { return inputs_.size(0); }
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    const torch::Tensor rows =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    const torch::Tensor x = inputs_.index_select(0, rows);
    return {x, x.sum(1, true), static_cast<std::int64_t>(indices.size())};
  }

 private:
  const torch::Tensor inputs_ = torch::randn({64, 16});
};

void train_by_trainer(cox::Session& session, const Options& options, Task& task) {
  const Numbers data;
  cox::Trainer trainer(session, *task.model, task.optimizer,
                       {.global_batch = 8, .steps = options.steps});
  for (cox::TrainerStep& step : trainer.steps(data)) {
    step.backward(torch::mse_loss(task.model->forward(step.batch().inputs), step.batch().targets));
    step.update();
    if (meddle(options, session.rank(), step.number(), task)) return;
  }
  use_at_the_end(options, session.rank(), task);
}

void train_plainly(cox::Session& session, const Options& options, Task& task) {
  if (options.loop == "adopted") session.adopt(*task.model);
  for (std::uint64_t i = 0; i < options.steps; ++i) {
    task.optimizer.zero_grad();
    task.loss().backward();
    task.optimizer.step();
    if (meddle(options, session.rank(), i, task)) return;
  }
}

void train_watched(cox::Session& session, const Options& options, Task& task) {
  for (std::uint64_t i = 0; i < options.steps; ++i) {
    const cox::StepScope step = session.step();
    task.optimizer.zero_grad();
    task.loss().backward();
    task.optimizer.step();
    if (meddle(options, session.rank(), i, task)) return;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "endings"});
  const Options options = options_of(session.arguments());
  torch::manual_seed(1);
  Task task;
  if (options.loop == "own") train_own(session, options, task);
  if (options.loop == "trainer") train_by_trainer(session, options, task);
  if (options.loop == "adopted") train_plainly(session, options, task);
  if (options.loop == "watched") train_watched(session, options, task);
  session.finish();
  std::printf("rank %d is done\n", session.rank());
  return 0;
} catch (const std::exception& error) {
  return cox::report(error);
}
