// D3: trains on ranks of different speeds and records the time of each step. d3.py starts it, with
// and without policy `shares`, and calculates.
//
//   mpiexec -n N bench_d3 real|imitated TRACES STEPS BATCH [RANK:FACTOR[:FROM-TO]...] [--cox...]
//
// real: a GPT-2; a slowed rank computes FACTOR times as much (the example's --slow). imitated: a
// rank sleeps 1 ms x FACTOR for each of its samples, as if it waited for a device. Each rank writes
// TRACES/RANK: a line a step with its start, samples, and seconds of work.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/examples/gpt2/extra_work.h"
#include "tests/bench/session_main.h"
#include "tests/bench/token_rows.h"

namespace {

using namespace cox;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Task {
  std::string form;
  std::string traces;
  std::uint64_t steps = 0;
  std::int64_t batch = 0;
  std::vector<gpt2::Slowdown> slow;
};

Task task_of(const std::vector<std::string>& words) {
  if (words.size() < 4 || (words[0] != "real" && words[0] != "imitated")) {
    throw Error(invalid_argument("bench_d3: expected real or imitated, TRACES, STEPS and BATCH"));
  }
  Task task{words[0], words[1], std::stoull(words[2]), std::stoll(words[3]), {}};
  for (std::size_t i = 4; i < words.size(); ++i) {
    auto slow = gpt2::parse_slowdown(words[i]);
    if (!slow.ok()) throw Error(slow.status());
    task.slow.push_back(*slow);
  }
  return task;
}

class Trace {
 public:
  Trace(const Task& task, int rank) : out_(task.traces + "/" + std::to_string(rank)) {
    out_.precision(6);
    out_ << std::fixed;
  }
  void begin() { began_ = Clock::now(); }
  // Ends the rank's own work; later time is waiting for others.
  void worked(const TrainerStep& step) {
    const Seconds work = Clock::now() - began_;
    out_ << Seconds(began_.time_since_epoch()).count() << ' ' << step.batch().samples << ' '
         << work.count() << '\n';
  }

 private:
  std::ofstream out_;
  Clock::time_point began_{};
};

TrainerOptions options_of(const Task& task) {
  TrainerOptions options;
  options.global_batch = task.batch;
  options.steps = task.steps;
  return options;
}

// Returns one epoch, because a smaller batch at the end of an epoch would change shares.
std::int64_t samples_of(const Task& task) {
  return task.batch * static_cast<std::int64_t>(task.steps);
}

void train_real(Session& session, const Task& task) {
  torch::manual_seed(1);
  gpt2::Config config;
  config.n_layer = 2;
  gpt2::Gpt2 model(config);
  AdamW optimizer(model->parameters(), {.lr = 1e-4});
  Trainer trainer(session, *model, optimizer, options_of(task));
  const bench::TokenRows dataset(samples_of(task), 64);
  gpt2::ExtraWork extra(model, task.slow, session.rank());
  Trace trace(task, session.rank());
  for (auto& step : trainer.steps(dataset)) {
    trace.begin();
    extra.run(step);
    step.accumulate([&](const Batch& batch) { return model->loss(batch.inputs, batch.targets); });
    trace.worked(step);
    step.update();
  }
}

// Sleeps a third of the time in forward, the rest at the start of backward.
at::Tensor on_a_device(const at::Tensor& loss, Seconds busy) {
  std::this_thread::sleep_for(busy / 3);
  loss.register_hook([busy](const at::Tensor& gradient) {
    std::this_thread::sleep_for(busy * 2 / 3);
    return gradient;
  });
  return loss;
}

void train_imitated(Session& session, const Task& task) {
  constexpr Seconds kSample{1e-3};
  torch::manual_seed(1);
  torch::nn::Linear model(16, 1);
  AdamW optimizer(model->parameters(), {.lr = 1e-4});
  Trainer trainer(session, *model, optimizer, options_of(task));
  const bench::TokenRows dataset(samples_of(task), 16);
  Trace trace(task, session.rank());
  for (auto& step : trainer.steps(dataset)) {
    trace.begin();
    const double factor = gpt2::factor_of(task.slow, session.rank(), step.number());
    step.accumulate([&](const Batch& batch) {
      const at::Tensor loss = model->forward(batch.inputs.to(at::kFloat) / 256).square().mean();
      return on_a_device(loss, kSample * factor * static_cast<double>(batch.samples));
    });
    trace.worked(step);
    step.update();
  }
}

void train(Session& session) {
  at::set_num_threads(1);
  const Task task = task_of(session.arguments());
  task.form == "real" ? train_real(session, task) : train_imitated(session, task);
}

}  // namespace

int main(int argc, char** argv) {
  return cox::bench::session_main(argc, argv, {.program = "bench_d3"}, train);
}
