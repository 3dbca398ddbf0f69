// S3: trains on ranks of which some are made slower. s3.py starts it and reads the named ranks from
// the run's journal.
//
//   mpiexec -n N bench_s3 gpt2|small STEPS BATCH [RANK:FACTOR[:FROM-TO]...]
//                         [data:RANK:MILLISECONDS:FROM...] [--cox...]
//
// gpt2: two layers; a slowed rank computes FACTOR times as much (the example's --slow). small: a
// network with steps of about a millisecond, for many steps. data: the rank sleeps so long each
// time it loads a batch, from step FROM on.
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/examples/gpt2/extra_work.h"
#include "tests/bench/session_main.h"
#include "tests/bench/token_rows.h"

namespace {

using namespace cox;

struct DataSlowdown {
  std::int32_t rank = -1;
  std::chrono::microseconds each{};
  std::uint64_t from = 0;
};

struct Task {
  std::string model;
  std::uint64_t steps = 0;
  std::int64_t batch = 0;
  std::vector<gpt2::Slowdown> slow;
  std::vector<DataSlowdown> data;
};

DataSlowdown data_slowdown_of(const std::string& text) {
  const std::size_t milliseconds = text.find(':') + 1;
  const std::size_t from = text.find(':', milliseconds) + 1;
  return {std::stoi(text),
          std::chrono::microseconds(std::llround(1e3 * std::stod(text.substr(milliseconds)))),
          std::stoull(text.substr(from))};
}

Task task_of(const std::vector<std::string>& words) {
  if (words.size() < 3 || (words[0] != "gpt2" && words[0] != "small")) {
    throw Error(invalid_argument("bench_s3: expected gpt2 or small, STEPS and BATCH"));
  }
  constexpr std::string_view kData = "data:";
  Task task{words[0], std::stoull(words[1]), std::stoll(words[2]), {}, {}};
  for (std::size_t i = 3; i < words.size(); ++i) {
    if (words[i].starts_with(kData)) {
      task.data.push_back(data_slowdown_of(words[i].substr(kData.size())));
      continue;
    }
    auto slow = gpt2::parse_slowdown(words[i]);
    if (!slow.ok()) throw Error(slow.status());
    task.slow.push_back(*slow);
  }
  return task;
}

// Rows that take a while to load. The training thread loads a batch once a step.
class SlowRows final : public Dataset {
 public:
  SlowRows(const Task& task, std::int64_t length, std::int32_t rank)
      : rows_(task.batch * static_cast<std::int64_t>(task.steps), length),
        task_(task),
        rank_(rank) {}

  std::int64_t size() const override { return rows_.size(); }
  Batch get(std::span<const std::int64_t> indices) const override {
    const std::uint64_t step = loaded_++;
    for (const DataSlowdown& slow : task_.data) {
      if (slow.rank == rank_ && step >= slow.from) std::this_thread::sleep_for(slow.each);
    }
    return rows_.get(indices);
  }

 private:
  bench::TokenRows rows_;
  const Task& task_;
  std::int32_t rank_;
  mutable std::uint64_t loaded_ = 0;
};

TrainerOptions options_of(const Task& task) {
  TrainerOptions options;
  options.global_batch = task.batch;
  options.steps = task.steps;
  return options;
}

void train_gpt2(Session& session, const Task& task) {
  gpt2::Config config;
  config.n_layer = 2;
  gpt2::Gpt2 model(config);
  AdamW optimizer(model->parameters(), {.lr = 1e-4});
  Trainer trainer(session, *model, optimizer, options_of(task));
  const SlowRows dataset(task, 64, session.rank());
  gpt2::ExtraWork extra(model, task.slow, session.rank());
  for (auto& step : trainer.steps(dataset)) {
    extra.run(step);
    step.accumulate([&](const Batch& batch) { return model->loss(batch.inputs, batch.targets); });
    step.update();
  }
}

void train_small(Session& session, const Task& task) {
  using torch::nn::Linear;
  torch::nn::Sequential model(Linear(16, 192), torch::nn::Tanh(), Linear(192, 192),
                              torch::nn::Tanh(), Linear(192, 1));
  AdamW optimizer(model->parameters(), {.lr = 1e-4});
  Trainer trainer(session, *model, optimizer, options_of(task));
  const SlowRows dataset(task, 16, session.rank());
  for (auto& step : trainer.steps(dataset)) {
    step.accumulate([&](const Batch& batch) {
      return model->forward(batch.inputs.to(at::kFloat) / 256).square().mean();
    });
    step.update();
  }
}

void train(Session& session) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const Task task = task_of(session.arguments());
  task.model == "gpt2" ? train_gpt2(session, task) : train_small(session, task);
}

}  // namespace

int main(int argc, char** argv) {
  return cox::bench::session_main(argc, argv, {.program = "bench_s3"}, train);
}
