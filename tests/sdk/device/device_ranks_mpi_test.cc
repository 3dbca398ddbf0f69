// Gradients of several ranks with a device each: the losses are those of the CPU.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/runtime/control_plane.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "small_text.h"
#include "tests/support/cuda/nccl_script.h"
#include "waits.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Sets other shares every second round.
class ChangingShares final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "changing_shares"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    const std::uint64_t round = input.signals.round.value();
    if (round % 2 != 0) return {{}, {}, state};
    std::vector<std::uint32_t> shares(static_cast<std::size_t>(input.job.world_size), 1);
    shares[round / 2 % shares.size()] = 3;
    Reason reason;
    reason.code = ReasonCode::custom;
    reason.text = "other shares";
    return {{{SetShares{shares}, reason}}, {}, state};
  }
};

// Returns the gradient norm of the last step of an adopted loop.
double last_norm_on(const std::string& device, int steps) {
  auto session = solo_session({"--cox.run.device=" + device});
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  session.adopt(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    const std::vector<std::int64_t> rows = {step, session.rank() + 5};
    const Batch batch = SmallText().get(rows);
    optimizer.zero_grad();
    const at::Tensor loss =
        model->loss(batch.inputs.to(session.device()), batch.targets.to(session.device()));
    loss.backward();
    optimizer.step();
    CHECK(std::isfinite(loss.item<double>()));
  }
  session.finish();
  return session.state().recorder().report().gradient_norm;
}

int world() {
  auto session = solo_session({"--cox.run.device=cpu"});
  return session.world_size();
}

}  // namespace

TEST_CASE("a step of several ranks waits for the device as often as a loop of one by itself") {
  struct Case {
    std::string name;
    std::vector<std::string> flags;
    TrainerOptions options{};
    bool changes_shares = false;
  };
  TrainerOptions micro_batches;
  micro_batches.micro_batch = 1;
  const std::vector<Case> cases = {
      {"even shares", {}},
      {"uneven shares", {std::string("--cox.force.shares=") + (world() == 2 ? "3,5" : "1,3,2,2")}},
      {"changing shares", {}, {}, true},
      {"changing shares in micro-batches", {}, micro_batches, true},
      {"fp16", {"--cox.precision.format=fp16"}},
      {"a budget", {"--cox.memory.budget=1GiB"}},
      {"sums in the backward pass", {"--cox.reduction.bucket_bytes=4KiB"}},
  };
  train_on("cuda", {{}, {.steps = 1}});  // warms up: the first use of a device waits more often
  const std::uint64_t plain = waits_of_own_loop(Scaling::none);
  const std::size_t asked =
      world() == 2 ? cases.size() : 3;  // the rest would show nothing new with more ranks
  for (const Case& each : std::span(cases).first(asked)) {
    SessionOptions with;
    if (each.changes_shares) with.policies.push_back(std::make_shared<ChangingShares>());
    std::vector<std::string> flags = each.flags;
    flags.push_back("--cox.run.device=cuda");
    const std::uint64_t waits = waits_of_trainer(flags, small_gpt(), each.options, std::move(with));
    CAPTURE(each.name);
    MESSAGE("waits of a step: ", waits, " ", each.name);
    CHECK(waits == plain);
  }
}

TEST_CASE("an adopted loop of several ranks waits for the device as often as one by itself") {
  const std::uint64_t plain = waits_of_own_loop(Scaling::none);
  std::vector<std::string> flags = {"--cox.run.name=plain"};
  if (world() == 2)
    flags.insert(flags.end(), {"--cox.precision.format=bf16", "--cox.memory.budget=1GiB"});
  for (const std::string& flag : flags) {
    CAPTURE(flag);
    auto session = solo_session({"--cox.run.device=cuda", flag});
    const std::uint64_t waits =
        waits_of_own_loop(Scaling::none, [&](torch::nn::Module& model) { session.adopt(model); });
    MESSAGE("waits of a step: ", waits, " ", flag);
    CHECK(waits == plain);
    session.finish();
  }
}

TEST_CASE("where NCCL does not start, gradients go through host memory with the CPU's bits" *
          doctest::skip(!on_stand_in())) {  // scripts the fake NCCL to fail
  Training training;
  training.options.steps = 5;
  const Trained here = train_on("cpu", training);
  const test::NcclScriptHere script("init=fail");
  const Trained there = train_on("cuda", training);
  CHECK(there.losses == here.losses);
  CHECK(count_unequal(there.parameters, here.parameters) == 0);
}

TEST_CASE("masks go over NCCL where plans act, and a job that only watches does not start it") {
  for (const bool trains : {true, false}) {
    CAPTURE(trains);
    auto session = solo_session({"--cox.run.device=cuda"});
    gpt2::Gpt2 model = small_gpt();
    model->to(session.device());
    if (trains) session.adopt(*model);
    const auto step = [&] {
      const std::vector<std::int64_t> rows = {session.rank()};
      const Batch batch = SmallText().get(rows);
      model->loss(batch.inputs.to(session.device()), batch.targets.to(session.device())).backward();
    };
    if (trains) {
      step();
    } else {
      const StepScope watched = session.step();
      step();
    }
    CHECK(session.state().control().plane().path() == (trains ? "mailbox+nccl" : "mailbox"));
    session.finish();
  }
}

// The fake NCCL fails a call while a call of another group of the rank has not reached its stream.
TEST_CASE(
    "a mask that NCCL is slow to hand over comes to each device before the next step's sums") {
  const test::NcclScriptHere script(concat("rank=", world() - 1, " settle=60"));
  SessionOptions with;
  with.policies.push_back(std::make_shared<ChangingShares>());
  auto session = solo_session({"--cox.run.device=cuda"}, std::move(with));
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer, {.steps = 60});
  const SmallText data;
  for (auto& step : trainer.steps(data)) {
    step.backward(
        step.forward([&] { return model->loss(step.batch().inputs, step.batch().targets); }));
    step.update();
  }
  const runtime::ControlPlane& plane = session.state().control().plane();
  CHECK(plane.path() == "mailbox+nccl");
  CHECK(plane.plan().id.number >= 2);
  session.finish();
}

TEST_CASE("an adopted loop that reads its loss tells each step's norm of its averages") {
  for (const int steps : {2, 3}) {
    const double here = last_norm_on("cpu", steps);
    CHECK(here > 0);
    CHECK(last_norm_on("cuda", steps) == doctest::Approx(here).epsilon(1e-6));
  }
}

TEST_CASE("ranks on devices get the losses of ranks on CPUs, with even and uneven shares") {
  for (const std::string& shares :
       {std::string(), "--cox.force.shares=" + std::string(world() == 2 ? "3,5" : "1,3,2,2")}) {
    CAPTURE(shares);
    Training training;
    training.options.steps = 5;
    training.options.clip_norm = 0.5;
    training.flags.push_back("--cox.reduction.bucket_bytes=4KiB");  // many, in backward
    if (!shares.empty()) training.flags.push_back(shares);
    const Trained here = train_on("cpu", training);
    const Trained there = train_on("cuda", training);
    REQUIRE(there.losses.size() == here.losses.size());
    for (std::size_t i = 0; i < here.losses.size(); ++i)
      CHECK(std::abs(there.losses[i] - here.losses[i]) < 1e-6);
  }
}

TEST_CASE("weights that part on a device are found, with the parameter") {
  auto session = solo_session({"--cox.run.device=cuda", "--cox.reduction.verify_steps=1"});
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer, {.steps = 8});
  const SmallText data;
  std::uint64_t last = 0;
  std::string found;
  try {
    for (auto& step : trainer.steps(data)) {
      last = step.number();
      step.backward(
          step.forward([&] { return model->loss(step.batch().inputs, step.batch().targets); }));
      step.update();
      const torch::NoGradGuard no_grad;
      if (last == 3 && session.rank() == 1) model->parameters()[2][0] += 0.5;
    }
  } catch (const Error& error) {
    found = error.what();
  }
  CHECK(last == 5);  // hashed in step 4, compared in step 5
  CHECK(found.find("parameter 2 of 40") != std::string::npos);
}

TEST_CASE("ranks on one device plan with their part of what is free there") {
  for (const bool is_shared : {false, true}) {
    CAPTURE(is_shared);
    if (is_shared) setenv("CUDA_STANDIN_SHARED", "yes", 1);
    auto session = solo_session({"--cox.run.device=cuda"});
    const int sharers = is_shared ? session.world_size() : 1;
    CHECK(session.state().job().place().ranks == sharers);
    const at::Tensor used = torch::empty({1 << 20}, session.device());
    auto& probe = session.capabilities().probe;
    probe.count_on(session.device());
    const auto held = static_cast<std::uint64_t>(probe.memory().reserved().live_bytes);
    CHECK(held >= used.nbytes());
    CHECK(probe.reading().limit_bytes ==
          held + *probe.memory().free_bytes() / static_cast<std::uint64_t>(sharers));
    session.finish();
    unsetenv("CUDA_STANDIN_SHARED");
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
