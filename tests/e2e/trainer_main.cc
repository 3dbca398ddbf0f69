// A small trainer for the end-to-end tests. Logs its samples, and misbehaves on request
// (trainer_options.h). A model with blocks also logs, for each step, the formats of its blocks, the
// loss scale, and a checksum of the weights before the update.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"
#include "tests/e2e/block_model.h"
#include "tests/e2e/trainer_options.h"

namespace e2e {
namespace {

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

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::shared_ptr<StackImpl> blocks;  // null: a model without blocks
};

Model make_model(const Options& options, int rank) {
  if (options.blocks > 0) {
    Stack stack(options.blocks, options.width);
    return {stack.ptr(), [stack](const at::Tensor& x) mutable { return stack->forward(x); },
            stack.ptr()};
  }
  const std::int64_t width = rank == options.odd_model_on ? 9 : 8;
  torch::nn::Sequential layers(torch::nn::Linear(4, width), torch::nn::Tanh(),
                               torch::nn::Dropout(0.1), torch::nn::Linear(width, 1));
  return {layers.ptr(), [layers](const at::Tensor& x) mutable { return layers->forward(x); }, {}};
}

void note_samples(std::ofstream& out, std::uint64_t step, const std::vector<std::int64_t>& used) {
  if (!out.is_open()) return;
  out << step << ":";
  for (const std::int64_t sample : used) out << ' ' << sample;
  out << std::endl;
}

void request(cox::Session& session, const std::vector<FormatRequest>& requests,
             std::uint64_t step) {
  for (const FormatRequest& one : requests) {
    if (one.step != step || one.rank != session.rank()) continue;
    if (one.what == "force") session.force_precision(one.block, one.format, one.rounds);
    if (one.what == "forbid") session.forbid_precision(one.block, one.format, one.rounds);
    if (one.what == "release") session.release_precision(one.block);
  }
}

// The first block's device in the step that begins; equal on all ranks but the slow one.
class Device {
 public:
  enum class State { as_it_was, left_8_bits };
  State begin_step(const Options& options, StackImpl& blocks, int rank, std::uint64_t step) {
    const bool is_in_8_bits = blocks.first_format() == cox::Precision::fp8;
    steps_in_8_bits_ += is_in_8_bits ? 1 : 0;
    const SlowDevice& slow = options.slow;
    const bool is_slow =
        rank == slow.rank && step >= slow.from && steps_in_8_bits_ < slow.steps_in_8_bits;
    blocks.set_device(options.device_ms, is_slow ? slow.factor : 1);
    return steps_in_8_bits_ > 0 && !is_in_8_bits ? State::left_8_bits : State::as_it_was;
  }

 private:
  std::uint64_t steps_in_8_bits_ = 0;
};

void misbehave(const Options& options, int rank, std::uint64_t step) {
  std::this_thread::sleep_for(std::chrono::milliseconds(options.sleep_ms));
  if (rank == options.throw_on && step == options.throw_at) {
    throw std::runtime_error("the user's own code failed");
  }
}

void train_step(cox::TrainerStep& step, Model& model, const Options& options) {
  const bool is_bad = step.number() >= options.first_nan && step.number() <= options.last_nan;
  const at::Tensor loss = step.forward([&] {
    const auto& batch = step.batch();
    const auto made = torch::mse_loss(model.forward(batch.inputs), batch.targets);
    return is_bad ? made * std::numeric_limits<double>::quiet_NaN() : made;
  });
  double scale = 0;  // the actual factor of backward()
  if (model.blocks && loss.defined()) {
    loss.register_hook([&scale](const at::Tensor& g) { scale = g.item<double>(); });
  }
  step.backward(loss);
  if (model.blocks) {
    step.log("formats", model.blocks->formats());
    step.log("scale", scale);
    step.log("weights", checksum(*model.module));
  }
  step.update();
}

void hold(cox::Session& session) {
  if (session.rank() == 0) {
    std::printf("holding %s until SIGTERM\n", session.status_address().c_str());
    std::fflush(stdout);
  }
  while (!session.stop_requested_anywhere()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void print_end(const cox::Session& session, const cox::TrainingProgress& progress, Model& model) {
  if (model.blocks) std::printf("rank %d: weights %.0f\n", session.rank(), checksum(*model.module));
  if (session.rank() != 0) return;
  std::printf("done: step %llu, %llu samples, %llu skipped, %llu rollbacks\n",
              static_cast<unsigned long long>(progress.step),
              static_cast<unsigned long long>(progress.consumed),
              static_cast<unsigned long long>(progress.skipped),
              static_cast<unsigned long long>(progress.rollbacks));
}

int run(int argc, char** argv) {
  auto session = cox::Session::start(argc, argv, {.program = "e2e_trainer"});
  const Options options = parse(session.arguments());
  torch::manual_seed(session.config().run.seed);
  Model model = make_model(options, session.rank());
  cox::AdamW optimizer(model.module->parameters(), {.lr = 1e-3});
  cox::Trainer trainer(session, *model.module, optimizer,
                       {.global_batch = 8, .steps = options.steps});
  const Numbers data(options.size);
  std::ofstream samples;
  if (!options.samples.empty()) {
    const std::string name = "rank" + std::to_string(session.rank()) + ".txt";
    samples.open(std::filesystem::path(options.samples) / name, std::ios::app);
  }
  Device device;
  for (auto& step : trainer.steps(data)) {
    note_samples(samples, step.number(), data.last);
    misbehave(options, session.rank(), step.number());
    request(session, options.requests, step.number());
    if (model.blocks) {
      model.blocks->inject(options.injections, session.rank(), step.number());
      const auto state = device.begin_step(options, *model.blocks, session.rank(), step.number());
      if (options.slow.rank >= 0 && state == Device::State::left_8_bits) trainer.stop();
    }
    train_step(step, model, options);
  }
  print_end(session, trainer.progress(), model);
  session.finish();
  if (options.hold) hold(session);
  return 0;
}

}  // namespace
}  // namespace e2e

int main(int argc, char** argv) {
  try {
    return e2e::run(argc, argv);
  } catch (const std::exception& error) {
    return cox::report(error);
  }
}
