// A small trainer for the end-to-end tests: says which samples it used, and misbehaves on request.
//   e2e_trainer [--steps N] [--size N] [--samples DIR] [--sleep-ms N] [--nan-steps FIRST LAST]
//               [--throw-on RANK] [--throw-at STEP] [--odd-model-on RANK]
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"

namespace {

struct Options {
  std::uint64_t steps = 50;
  std::int64_t size = 100;
  std::string samples;  // folder for rank<k>.txt, a line "step: sample sample ..." each step
  int sleep_ms = 0;
  std::uint64_t first_nan = 1;  // none by default
  std::uint64_t last_nan = 0;
  int throw_on = -1;
  std::uint64_t throw_at = 0;
  int odd_model_on = -1;
};

Options parse(const std::vector<std::string>& arguments) {
  Options o;
  std::size_t i = 0;
  const auto number = [&] { return std::stoll(arguments.at(++i)); };
  for (; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--steps") o.steps = static_cast<std::uint64_t>(number());
    if (name == "--size") o.size = number();
    if (name == "--samples") o.samples = arguments.at(++i);
    if (name == "--sleep-ms") o.sleep_ms = static_cast<int>(number());
    if (name == "--nan-steps") {
      o.first_nan = static_cast<std::uint64_t>(number());
      o.last_nan = static_cast<std::uint64_t>(number());
    }
    if (name == "--throw-on") o.throw_on = static_cast<int>(number());
    if (name == "--throw-at") o.throw_at = static_cast<std::uint64_t>(number());
    if (name == "--odd-model-on") o.odd_model_on = static_cast<int>(number());
  }
  return o;
}

class Numbers final : public cox::Dataset {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    last.assign(indices.begin(), indices.end());
    const auto rows = static_cast<std::int64_t>(indices.size());
    const auto numbers = torch::tensor(last, torch::kLong).to(torch::kFloat).view({rows, 1});
    return {torch::sin(numbers * torch::arange(1, 5)), torch::cos(numbers), rows};
  }
  mutable std::vector<std::int64_t> last;

 private:
  std::int64_t size_;
};

void note_samples(std::ofstream& out, std::uint64_t step, const std::vector<std::int64_t>& used) {
  if (!out.is_open()) return;
  out << step << ":";
  for (const std::int64_t sample : used) out << ' ' << sample;
  out << std::endl;
}

int run(int argc, char** argv) {
  auto session = cox::Session::start(argc, argv, {.program = "e2e_trainer"});
  const Options options = parse(session.arguments());
  torch::manual_seed(session.config().run.seed);
  const std::int64_t width = session.rank() == options.odd_model_on ? 9 : 8;
  torch::nn::Sequential model(torch::nn::Linear(4, width), torch::nn::Tanh(),
                              torch::nn::Dropout(0.1), torch::nn::Linear(width, 1));
  cox::AdamW optimizer(model->parameters(), {.lr = 1e-3});
  cox::Trainer trainer(session, *model, optimizer, {.global_batch = 8, .steps = options.steps});
  const Numbers data(options.size);
  std::ofstream samples;
  if (!options.samples.empty()) {
    const std::string name = "rank" + std::to_string(session.rank()) + ".txt";
    samples.open(std::filesystem::path(options.samples) / name, std::ios::app);
  }
  for (auto& step : trainer.steps(data)) {
    note_samples(samples, step.number(), data.last);
    std::this_thread::sleep_for(std::chrono::milliseconds(options.sleep_ms));
    if (session.rank() == options.throw_on && step.number() == options.throw_at) {
      throw std::runtime_error("the user's own code failed");
    }
    const bool is_bad = step.number() >= options.first_nan && step.number() <= options.last_nan;
    step.backward(step.forward([&] {
      const auto& batch = step.batch();
      const auto loss = torch::mse_loss(model->forward(batch.inputs), batch.targets);
      return is_bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
    }));
    step.update();
  }
  if (session.rank() == 0) {
    const cox::TrainingProgress& progress = trainer.progress();
    std::printf("done: step %llu, %llu samples, %llu skipped, %llu rollbacks\n",
                static_cast<unsigned long long>(progress.step),
                static_cast<unsigned long long>(progress.consumed),
                static_cast<unsigned long long>(progress.skipped),
                static_cast<unsigned long long>(progress.rollbacks));
  }
  session.finish();
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
