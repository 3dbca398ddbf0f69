#include "coxswain/trainer.h"

#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/sample_plan.h"
#include "rollback_policy.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/training/training_state.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One run of the trainer, with all results for the tests.
struct Run {
  SmallModel model;
  SmallData data;
  AdamW optimizer{model->parameters(), {.lr = 0.01}};
  std::vector<double> losses;
  std::vector<std::uint64_t> numbers;
  TrainingProgress progress;

  void go(const std::vector<std::string>& flags, TrainerOptions options,
          const Distortion& distort = {}, SessionOptions session_options = {}) {
    auto session = solo_session(flags, std::move(session_options));
    Trainer trainer(session, *model, optimizer, std::move(options));
    losses = train(trainer, model, data, [&](std::uint64_t step, at::Tensor loss) {
      numbers.push_back(step);
      return distort ? distort(step, loss) : loss;
    });
    progress = trainer.progress();
  }
};

TrainerOptions options_for(std::uint64_t steps) {
  TrainerOptions options;
  options.steps = steps;
  options.clip_norm = 0.05;
  options.learning_rate = [](std::uint64_t step) {
    return 0.01 / (1.0 + 0.1 * static_cast<double>(step));
  };
  return options;
}

// A plain loop without Coxswain; skips the update of `skipped`.
std::vector<double> plain_loop(SmallModel& model, std::uint64_t steps, std::uint64_t skipped) {
  const TrainerOptions options = options_for(steps);
  const SmallData data;
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  SamplePlanOptions sampling;
  sampling.size = data.size();
  sampling.global_batch = options.global_batch;
  sampling.seed = Config{}.run.seed;
  const auto plan = SamplePlan::create(sampling);
  std::vector<double> losses;
  std::uint64_t cursor = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const SampleBatch samples = plan->batch_at(cursor);
    const Batch batch = data.get(plan->indices(samples.cursor, 0, samples.count));
    cox::detail::seed_default_generators({sampling.seed, step, samples.cursor});
    const at::Tensor loss = model->loss(batch);
    optimizer.zero_grad();
    loss.backward();
    std::vector<at::Tensor> gradients;
    for (const auto& p : model->parameters()) gradients.push_back(p.grad());
    const double norm = cox::detail::l2_norm(gradients);
    if (norm > options.clip_norm) {
      const torch::NoGradGuard no_grad;
      for (auto& g : gradients) g.mul_(options.clip_norm / norm);
    }
    optimizer.set_lr(options.learning_rate(step));
    if (step != skipped) optimizer.step();
    losses.push_back(step == skipped ? kNaN : loss.item<double>());
    cursor = samples.next;
  }
  return losses;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("trainer on one rank") {
  TEST_CASE("losses and weights are those of a plain loop, bit for bit") {
    Run run;
    run.go({}, options_for(12));
    SmallModel plain;
    CHECK(same_bits(run.losses, plain_loop(plain, 12, ~0ull)));
    CHECK(equal_models(*run.model, *plain));
    CHECK(run.progress.step == 12);
    CHECK(run.progress.consumed == 80);  // 20 samples are batches of 8, 8 and 4
    CHECK_FALSE(run.progress.stopped);
  }

  TEST_CASE("a step whose loss is NaN is skipped, and nothing else changes") {
    Run run;
    run.go({}, options_for(9),
           [](std::uint64_t step, at::Tensor loss) { return step == 4 ? loss * kNaN : loss; });
    SmallModel plain;
    const auto expected = plain_loop(plain, 9, 4);
    CHECK(std::isnan(run.losses[4]));
    run.losses[4] = expected[4];
    CHECK(same_bits(run.losses, expected));
    CHECK(equal_models(*run.model, *plain));
    CHECK(run.progress.skipped == 1);
    CHECK(run.progress.step == 9);
  }

  TEST_CASE("clipping bounds the step, a large bound changes nothing") {
    const auto weights_after = [](double clip) {
      SmallModel model;
      SmallData data;
      torch::optim::SGD sgd(model->parameters(), 1.0);
      auto session = solo_session();
      TrainerOptions options;
      options.steps = 1;
      options.clip_norm = clip;
      Trainer trainer(session, *model, sgd, options);
      train(trainer, model, data);
      const SmallModel fresh;
      std::vector<at::Tensor> moved;
      for (std::size_t i = 0; i < model->parameters().size(); ++i) {
        moved.push_back((model->parameters()[i] - fresh->parameters()[i]).detach());
      }
      return cox::detail::l2_norm(moved);
    };
    const double free = weights_after(0);
    CHECK(weights_after(free / 4) == doctest::Approx(free / 4).epsilon(1e-4));
    CHECK(weights_after(free * 4) == free);
  }

  TEST_CASE("a resumed run goes on as if it had never stopped") {
    const TempFolder folder;
    const std::string flag = "--cox.checkpoint.directory=" + (folder / "saves").string();
    Run whole;
    whole.go({}, options_for(15));
    Run first;
    first.go({flag}, options_for(7));
    Run second;
    second.go({flag, "--cox.checkpoint.resume=on"}, options_for(15));
    CHECK(second.progress.resumed);
    first.losses.insert(first.losses.end(), second.losses.begin(), second.losses.end());
    CHECK(same_bits(first.losses, whole.losses));
    CHECK(equal_models(*second.model, *whole.model));
    CHECK(second.numbers.front() == 7);
    first.data.asked.insert(first.data.asked.end(), second.data.asked.begin(),
                            second.data.asked.end());
    CHECK(first.data.asked == whole.data.asked);
  }

  TEST_CASE("asked to stop, it finishes the step, saves, and can be resumed") {
    const TempFolder folder;
    const std::string flag = "--cox.checkpoint.directory=" + (folder / "saves").string();
    Run whole;
    whole.go({}, options_for(10));
    Run stopped;
    stopped.go({flag}, options_for(10), [](std::uint64_t step, at::Tensor loss) {
      if (step == 3) ::raise(SIGTERM);
      return loss;
    });
    CHECK(stopped.progress.stopped);
    CHECK(stopped.progress.step == 4);
    Run resumed;
    resumed.go({flag, "--cox.checkpoint.resume=on"}, options_for(10));
    stopped.losses.insert(stopped.losses.end(), resumed.losses.begin(), resumed.losses.end());
    CHECK(same_bits(stopped.losses, whole.losses));
  }

  TEST_CASE("a rollback ordered by a policy restores every bit, and training goes on") {
    Run whole;
    whole.go({}, options_for(300));
    Run rolled;
    SessionOptions options;
    options.policies = {std::make_shared<RollBackOnce>(20)};
    rolled.go(
        {"--cox.checkpoint.snapshot_rounds=5"}, options_for(300),
        [&](std::uint64_t, at::Tensor loss) {  // gives the coordinator time to react
          // Slow until the order arrives, so that earlier snapshots are still on the shelf on a
          // busy machine.
          const bool is_awaited = rolled.numbers.size() > 15 && rolled.numbers.size() < 60;
          std::this_thread::sleep_for(std::chrono::milliseconds(is_awaited ? 20 : 1));
          return loss;
        },
        options);
    REQUIRE(rolled.progress.rollbacks == 1);
    REQUIRE(rolled.losses.size() > 300);
    CHECK(rolled.progress.step == 300);
    std::size_t back = 1;
    while (rolled.numbers[back] > rolled.numbers[back - 1]) ++back;
    CHECK(rolled.numbers[back] <= 20);
    for (std::size_t i = 0; i < rolled.losses.size(); ++i) {
      CHECK(rolled.losses[i] == whole.losses[rolled.numbers[i]]);
    }
    CHECK(equal_models(*rolled.model, *whole.model));
  }

  TEST_CASE("a user's scalar and the learning rate are in the record") {
    const TempFolder folder;
    SmallModel model;
    SmallData data;
    AdamW optimizer(model->parameters());
    {
      auto session = solo_session({"--cox.run.directory", (folder / "run").string()});
      Trainer trainer(session, *model, optimizer, options_for(3));
      for (auto& step : trainer.steps(data)) {
        step.log("temperature", 20.5);
        step.backward(step.forward([&] { return model->loss(step.batch()); }));
        step.update();
      }
    }
    const std::string rows = read_bytes(folder / "run/rank0/steps.jsonl");
    CHECK(contains(rows, "\"temperature\":20.5"));
    CHECK(contains(rows, "\"lr\":0.01"));
    CHECK(contains(rows, "\"grad_norm\":"));
  }

  TEST_CASE("a pass of the loop that does too little or too much is told what was expected") {
    SmallModel model;
    SmallData data;
    const auto loss_of = [&](TrainerStep& step) {
      return step.forward([&] { return model->loss(step.batch()); });
    };
    struct Pass {
      const char* expected;
      std::function<void(TrainerStep&)> work;
    };
    const std::vector<Pass> passes = {
        {"expected step.update()", [&](TrainerStep& step) { step.backward(loss_of(step)); }},
        {"expected step.backward(loss)", [](TrainerStep& step) { step.update(); }},
        {"expected step.backward(loss)",
         [&](TrainerStep& step) {
           loss_of(step).backward();
           step.update();
         }},
        {"expected one step.update()",
         [&](TrainerStep& step) {
           step.backward(loss_of(step));
           step.update();
           step.update();
         }},
        {"expected a weight", [&](TrainerStep& step) { step.backward(loss_of(step), -1.0); }},
    };
    for (const Pass& pass : passes) {
      CAPTURE(pass.expected);
      AdamW optimizer(model->parameters());
      auto session = solo_session();
      Trainer trainer(session, *model, optimizer, options_for(3));
      const std::string message = error_of([&] {
        for (auto& step : trainer.steps(data)) pass.work(step);
      });
      CHECK(contains(message, pass.expected));
      optimizer.zero_grad();
    }
  }

  TEST_CASE("a loss of weight 0 changes nothing, and the step is skipped") {
    SmallModel model;
    const SmallModel untouched;
    SmallData data;
    AdamW optimizer(model->parameters());
    auto session = solo_session();
    Trainer trainer(session, *model, optimizer, options_for(2));
    for (auto& step : trainer.steps(data)) {
      step.backward(step.forward([&] { return model->loss(step.batch()); }), 0);
      step.update();
    }
    CHECK(trainer.progress().skipped == 2);
    for (std::size_t p = 0; p < model->parameters().size(); ++p) {
      CHECK(torch::equal(model->parameters()[p], untouched->parameters()[p]));
    }
  }

  TEST_CASE("a loop that was left by break goes on where it was left, as if it had not been") {
    SmallModel model;
    SmallModel whole;
    SmallData data;
    AdamW optimizer(model->parameters(), {.lr = 0.01});
    {
      auto session = solo_session();
      Trainer trainer(session, *model, optimizer, options_for(6));
      std::vector<std::uint64_t> numbers;
      for (int part = 0; part < 3; ++part) {
        int steps = 0;
        for (auto& step : trainer.steps(data)) {
          numbers.push_back(step.number());
          step.backward(step.forward([&] { return model->loss(step.batch()); }));
          step.update();
          if (++steps == 2) break;
        }
      }
      CHECK(numbers == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5});
      CHECK_FALSE(trainer.steps(data).begin() != Trainer::Steps::End{});
      CHECK(trainer.progress().step == 6);
    }
    plain_loop(whole, 6, ~0ull);
    CHECK(equal_models(*model, *whole));
  }

  TEST_CASE("what the optimizer does not hold keeps no gradient from step to step") {
    SmallModel model;
    SmallData data;
    AdamW optimizer(model->second->parameters(), {.lr = 0.01});
    auto session = solo_session();
    Trainer trainer(session, *model, optimizer, options_for(2));
    train(trainer, model, data);
    for (const at::Tensor& p : model->parameters()) CHECK_FALSE(p.grad().defined());
  }

  TEST_CASE("a session has one trainer, and a save needs a folder") {
    SmallModel model;
    AdamW optimizer(model->parameters());
    auto session = solo_session();
    Trainer trainer(session, *model, optimizer, options_for(3));
    CHECK(contains(error_of([&] { Trainer(session, *model, optimizer, options_for(3)); }),
                   "make the one Trainer of a session"));
    CHECK(contains(error_of([&] { trainer.save(); }), "checkpoint.directory"));
  }

  TEST_CASE("saves of another run are neither mixed nor removed") {
    const TempFolder folder;
    const std::string flag = "--cox.checkpoint.directory=" + (folder / "saves").string();
    Run first;
    first.go({flag}, options_for(4));
    CHECK(contains(error_of([&] { Run().go({flag}, options_for(4)); }), "checkpoint.resume=on"));
    CHECK(std::filesystem::exists(folder / "saves/step-000000000004/model.safetensors"));
  }

  TEST_CASE("resuming needs a directory, a save in it, and one that fits the model") {
    const TempFolder folder;
    const std::string flag = "--cox.checkpoint.directory=" + (folder / "saves").string();
    const std::string resume = "--cox.checkpoint.resume=on";
    CHECK(contains(error_of([&] { Run().go({resume}, options_for(2)); }), "checkpoint.directory"));
    CHECK(contains(error_of([&] { Run().go({flag, resume}, options_for(2)); }), "found none"));
    Run().go({flag}, options_for(2));
    auto session = solo_session({flag, resume});
    torch::nn::Linear other(2, 2);
    AdamW optimizer(other->parameters());
    CHECK(contains(error_of([&] { Trainer(session, *other, optimizer, options_for(2)); }),
                   "resume: "));
  }

  TEST_CASE("options out of range are errors") {
    SmallModel model;
    AdamW optimizer(model->parameters());
    auto session = solo_session();
    const auto told = [&](const TrainerOptions& options) {
      return error_of([&] { Trainer(session, *model, optimizer, options); });
    };
    CHECK(contains(told({.global_batch = 0}), "global_batch"));
    CHECK(contains(told({.micro_batch = -1}), "micro_batch"));
    CHECK(contains(told({.clip_norm = -1}), "clip_norm"));
  }
}
