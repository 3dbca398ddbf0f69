// Gradients of several ranks, each with a device of its own: the losses are those of the CPU.
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "small_text.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// The fake NCCL reads its script when a group is made (tests/support/cuda/nccl/script.h).
class NcclRefusesToStart {
 public:
  NcclRefusesToStart() { ::setenv("COX_FAKE_NCCL", "init=fail", 1); }
  ~NcclRefusesToStart() { ::unsetenv("COX_FAKE_NCCL"); }
  NcclRefusesToStart(const NcclRefusesToStart&) = delete;
  NcclRefusesToStart& operator=(const NcclRefusesToStart&) = delete;
};

}  // namespace

TEST_CASE("where NCCL does not start, gradients go through host memory with the CPU's bits") {
  Training training;
  training.options.steps = 5;
  const Trained here = train_on("cpu", training);
  const NcclRefusesToStart refusal;
  const Trained there = train_on("cuda", training);
  CHECK(there.losses == here.losses);
  CHECK(count_unequal(there.parameters, here.parameters) == 0);
}

TEST_CASE("ranks on devices get the losses of ranks on CPUs, with even and uneven shares") {
  const std::string world = [] {
    return std::to_string(solo_session({"--cox.run.device=cpu"}).world_size());
  }();
  for (const std::string& shares :
       {std::string(), "--cox.force.shares=" + std::string(world == "2" ? "3,5" : "1,3,2,2")}) {
    CAPTURE(shares);
    Training training;
    training.options.steps = 5;
    training.options.clip_norm = 0.5;
    if (!shares.empty()) training.flags.push_back(shares);
    const Trained here = train_on("cpu", training);
    const Trained there = train_on("cuda", training);
    REQUIRE(there.losses.size() == here.losses.size());
    for (std::size_t i = 0; i < here.losses.size(); ++i)
      CHECK(std::abs(there.losses[i] - here.losses[i]) < 1e-6);
  }
}

TEST_CASE("a NaN on one rank's device makes all ranks skip that step, and no other") {
  int rank = 0;
  {
    auto session = solo_session({"--cox.run.device=cpu"});
    rank = session.rank();
  }
  auto session = solo_session({"--cox.run.device=cuda"});
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer, {.steps = 6});
  const SmallText data;
  for (auto& step : trainer.steps(data)) {
    at::Tensor loss =
        step.forward([&] { return model->loss(step.batch().inputs, step.batch().targets); });
    const bool is_bad = step.number() == 2 && rank == session.world_size() - 1;
    step.backward(is_bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss);
    step.update();
    CHECK(std::isnan(trainer.progress().loss) == (trainer.progress().step == 3));
  }
  CHECK(trainer.progress().skipped == 1);
}
