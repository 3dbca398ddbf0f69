// N3: the cost of adaptive precision in quality, and the share of work in few bits. Trains every
// seed of every task twice from the same weights on the same data: in fp32, and with formats that
// blocks choose (imitated if this machine lacks them).
//
//   bench_n3 --text FILE [--quick] [TASK ...] [--cox.KEY=VALUE ...]
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "coxswain/coxswain.h"
#include "tests/bench/line.h"
#include "tests/bench/n3_tasks.h"

namespace {

using namespace cox;

constexpr std::uint64_t kRoundsOfFlips = 200;

struct Outcome {
  double loss = 0;       // on the held-out samples, computed in fp32
  double within_16 = 0;  // share of multiplications in at most 16 bits
  double within_8 = 0;   // ... in 8
  double flips = 0;      // the most by a block in any 200 rounds
};

// Counts work by format, and changes, as plans arrive.
class Watch {
 public:
  explicit Watch(const std::vector<bench::BlockWork>& work) : work_(work) {}

  void note(const Plan& plan) {
    for (std::size_t b = 0; b < work_.size(); ++b) {
      const auto format = plan.precision[b];
      const double all = work_[b].linear + work_[b].attention;
      total_ += all;
      if (format != Precision::fp32) within_16_ += all;
      if (format == Precision::fp8) within_8_ += work_[b].linear;
      if (!before_.empty() && before_[b] != format) changes_[b].push_back(step_);
    }
    before_ = plan.precision;
    ++step_;
  }

  Outcome outcome() const {
    Outcome outcome;
    outcome.within_16 = within_16_ / total_;
    outcome.within_8 = within_8_ / total_;
    for (const auto& changes : changes_) {
      for (std::size_t i = 0; i < changes.size(); ++i) {
        const auto last =
            std::lower_bound(changes.begin(), changes.end(), changes[i] + kRoundsOfFlips);
        const auto found = last - (changes.begin() + static_cast<long>(i));
        outcome.flips = std::max(outcome.flips, static_cast<double>(found));
      }
    }
    return outcome;
  }

 private:
  const std::vector<bench::BlockWork>& work_;
  std::vector<Precision> before_;
  std::vector<std::vector<std::uint64_t>> changes_ =
      std::vector<std::vector<std::uint64_t>>(work_.size());
  std::uint64_t step_ = 0;
  double total_ = 0;
  double within_16_ = 0;
  double within_8_ = 0;
};

double held_out_loss(bench::Task& task) {
  const torch::NoGradGuard no_grad;
  task.model->eval();
  return task.loss(task.model->forward(task.held_out.inputs), task.held_out.targets).item<double>();
}

struct Runs {
  std::string text;                   // for task "text"
  std::vector<std::string> settings;  // the caller's, applied after those below
};

double learning_rate_at(const bench::Task& task, std::uint64_t step) {
  const double at = static_cast<double>(step) / static_cast<double>(task.steps);
  return task.learning_rate * std::min(1.0, 20 * at + 0.05) * (1 - 0.9 * at);
}

void train_by_trainer(bench::Task& task, Session& session, Watch& watch) {
  AdamW optimizer(task.model->parameters(), {.lr = task.learning_rate, .weight_decay = 0.01});
  TrainerOptions options;
  options.global_batch = task.batch;
  options.steps = task.steps;
  options.clip_norm = 1;
  options.learning_rate = [&](std::uint64_t step) { return learning_rate_at(task, step); };
  Trainer trainer(session, *task.model, optimizer, options);
  for (auto& step : trainer.steps(*task.train)) {
    const Batch& batch = step.batch();
    step.backward(
        step.forward([&] { return task.loss(task.model->forward(batch.inputs), batch.targets); }));
    step.update();
    watch.note(session.plan());
  }
}

// Trains in a loop of torch's own parts, with an adopted model.
void train_adopted(bench::Task& task, std::uint64_t seed, Session& session, Watch& watch) {
  AdoptOptions options;
  for (std::size_t b = 0; b < task.work.size(); ++b) options.blocks.push_back(std::to_string(b));
  session.adopt(*task.model, options);
  torch::optim::AdamW optimizer(task.model->parameters(),
                                torch::optim::AdamWOptions(task.learning_rate).weight_decay(0.01));
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(task.batch));
  for (std::uint64_t step = 0; step < task.steps; ++step) {
    for (std::int64_t& row : rows)
      row = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(task.train->size()));
    const Batch batch = task.train->get(rows);
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options())
        .lr(learning_rate_at(task, step));
    optimizer.zero_grad();
    task.loss(task.model->forward(batch.inputs), batch.targets).backward();
    torch::nn::utils::clip_grad_norm_(task.model->parameters(), 1.0);
    watch.note(session.plan());
    optimizer.step();
  }
}

Outcome train(const std::string& name, std::uint64_t seed, const Runs& runs,
              const std::string& format) {
  bench::Task task = bench::make_task(name, seed, runs.text);
  std::vector<std::string> settings = {"bench_n3",
                                       "--cox.run.seed=" + std::to_string(seed),
                                       "--cox.precision.format=" + format,
                                       "--cox.precision.emulate=on",
                                       "--cox.precision.sample_every=1",
                                       "--cox.precision.patience_rounds=8",
                                       "--cox.http.enabled=off",
                                       "--cox.run.log=error"};
  settings.insert(settings.end(), runs.settings.begin(), runs.settings.end());
  std::vector<const char*> words;
  for (const std::string& setting : settings) words.push_back(setting.c_str());
  Watch watch(task.work);
  {
    auto session = Session::start(static_cast<int>(words.size()), words.data());
    if (bench::is_adopted(name)) {
      train_adopted(task, seed, session, watch);
    } else {
      train_by_trainer(task, session, watch);
    }
    session.finish();
    session.detach(*task.model);
  }
  Outcome outcome = watch.outcome();
  outcome.loss = held_out_loss(task);
  return outcome;
}

// Mean of `values` and half the width of its 95 % interval (Student's t, 19 degrees of freedom for
// the full run).
struct Mean {
  double value = 0;
  double half_width = 0;
};
Mean mean_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Mean mean;
  for (const double value : values) mean.value += value / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean.value) * (value - mean.value);
  mean.half_width = 2.093 * std::sqrt(squares / (n - 1) / n);
  return mean;
}

double worst(const std::vector<Outcome>& runs, double Outcome::*field, bool is_largest) {
  double found = runs.front().*field;
  for (const Outcome& run : runs) {
    found = is_largest ? std::max(found, run.*field) : std::min(found, run.*field);
  }
  return found;
}

void tell(const std::string& task, const std::vector<Outcome>& runs,
          const std::vector<double>& gaps, double fp32_loss) {
  const Mean gap = mean_of(gaps);
  const auto line = [&](const char* figure, double value, const char* unit, double limit,
                        bench::Better better) {
    bench::Line made("N3", value, unit);
    made.limit(limit, better)
        .with("figure", figure)
        .with("task", task)
        .with("seeds", static_cast<double>(runs.size()));
    return made;
  };
  line("held-out loss against fp32", gap.value, "%", 0.5, bench::Better::lower)
      .with("low_95", gap.value - gap.half_width)
      .with("high_95", gap.value + gap.half_width)
      .with("fp32_loss", fp32_loss)
      .print();
  line("share of multiplications in at most 16 bits, worst seed",
       100 * worst(runs, &Outcome::within_16, false), "%", 95, bench::Better::higher)
      .print();
  line("share of multiplications in 8 bits, worst seed",
       100 * worst(runs, &Outcome::within_8, false), "%", 50, bench::Better::higher)
      .print();
  line("format changes of a block in 200 rounds, worst block and seed",
       worst(runs, &Outcome::flips, true), "changes", 1, bench::Better::lower)
      .print();
}

int run(int argc, char** argv) {
  Runs settings;
  std::vector<std::string> tasks;
  const auto effort = bench::effort_of(argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--text" && i + 1 < argc) {
      settings.text = argv[++i];
    } else if (word.starts_with("--cox.")) {
      settings.settings.push_back(word);
    } else if (word != "--quick") {
      tasks.push_back(word);
    }
  }
  if (tasks.empty()) tasks.assign(std::begin(bench::kTasks), std::end(bench::kTasks));
  at::set_num_threads(1);
  const std::uint64_t seeds = effort == bench::Effort::quick ? 2 : 20;
  for (const std::string& task : tasks) {
    std::vector<Outcome> runs;
    std::vector<double> gaps;
    double fp32_loss = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const Outcome fp32 = train(task, seed, settings, "fp32");
      runs.push_back(train(task, seed, settings, "auto"));
      gaps.push_back(100 * (runs.back().loss / fp32.loss - 1));
      fp32_loss += fp32.loss / static_cast<double>(seeds);
      std::fprintf(
          stderr,
          "%s seed %llu: fp32 %.5f, auto %+.3f %%, 16 bits %.1f %%, 8 bits %.1f %%, flips %.0f\n",
          task.c_str(), static_cast<unsigned long long>(seed), fp32.loss, gaps.back(),
          100 * runs.back().within_16, 100 * runs.back().within_8, runs.back().flips);
    }
    tell(task, runs, gaps, fp32_loss);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return cox::report(error);
  }
}
