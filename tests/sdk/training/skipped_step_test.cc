// The model's state after a skipped step.
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

struct NormModelImpl : torch::nn::Module {
  NormModelImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor loss(const Batch& batch) {
    return torch::mse_loss(second(norm(first(batch.inputs))), batch.targets);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(NormModel);

constexpr std::uint64_t kBadStep = 3;

// Trains with NaN in rank 0's samples of one step.
void train_with_a_bad_batch(Session& session, NormModel& model, TrainerOptions options) {
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  options.steps = 6;
  Trainer trainer(session, *model, optimizer, options);
  const SmallData data(24);
  for (auto& step : trainer.steps(data)) {
    const bool is_bad = step.number() == kBadStep && session.rank() == 0;
    const auto loss_of = [&](Batch batch) {
      if (is_bad) batch.inputs = batch.inputs * std::numeric_limits<float>::quiet_NaN();
      return model->loss(batch);
    };
    if (options.micro_batch > 0) {
      step.accumulate(loss_of);
    } else {
      step.backward(step.forward([&] { return loss_of(step.batch()); }));
    }
    step.update();
  }
  CHECK(trainer.progress().skipped == 1);
}

bool is_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

}  // namespace

TEST_SUITE("a skipped step") {
  TEST_CASE("leaves no NaN in running statistics, whichever rank had it") {
    for (const std::string reproducible : {"off", "on"}) {
      CAPTURE(reproducible);
      auto session = solo_session({"--cox.reduction.reproducible=" + reproducible});
      NormModel model;
      const std::int64_t micro_batch = reproducible == "on" ? 4 : 0;
      train_with_a_bad_batch(session, model, {.global_batch = 8, .micro_batch = micro_batch});
      CHECK(is_finite(model->norm->running_mean));
      CHECK(is_finite(model->norm->running_var));
      CHECK_FALSE(torch::equal(model->norm->running_mean, torch::zeros({8})));
      model->eval();
      CHECK(is_finite(model->loss(SmallData(24).get(std::vector<std::int64_t>{1, 2}))));
    }
  }
}
