// A Trainer and an adopted loop on a device give the CPU's bits, whatever the coordinator does to
// their blocks. The stand-ins use the CPU's kernels and report every race. A GPU gives the CPU's
// losses up to rounding, and the same bits under every action.
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coxswain/fit.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/blocks/timed_run.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/stream/recorded_pass.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/training/capabilities.h"
#include "small_text.h"
#include "stand_in_counts.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

TrainerOptions with_clipping() {
  TrainerOptions options = steps(5);
  options.clip_norm = 0.5;
  return options;
}

TrainerOptions with_micro_batches() {
  TrainerOptions options = steps(4);
  options.micro_batch = 3;
  return options;
}

TrainerOptions with_prefetch() {
  TrainerOptions options = steps(5);
  options.prefetch = 2;
  return options;
}

Trained adopt_on(const std::string& device, std::vector<std::string> flags) {
  flags.push_back("--cox.run.device=" + device);
  auto session = solo_session(flags);
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  session.adopt(*model);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  const SmallText data;
  Trained outcome;
  for (std::int64_t step = 0; step < 5; ++step) {
    const std::vector<std::int64_t> rows = {step, step + 5, step + 9};
    const Batch batch = data.get(rows);
    optimizer.zero_grad();
    const at::Tensor loss =
        model->loss(batch.inputs.to(session.device()), batch.targets.to(session.device()));
    loss.backward();
    optimizer.step();
    outcome.losses.push_back(loss.item<double>());
  }
  session.finish();
  outcome.parameters = on_cpu(*model);
  return outcome;
}

}  // namespace

TEST_CASE("a trainer on the device gives the CPU's bits, in every format and under every action") {
  struct Case {
    std::string name;
    Training training;
  };
  const std::string precision = "--cox.precision.format=";
  const std::string force = "--cox.memory.force=*=";
  const std::vector<Case> cases = {
      {"plain", {{}, steps(5)}},
      {"micro-batches", {{}, with_micro_batches()}},
      {"prefetch", {{}, with_prefetch()}},
      {"bf16", {{precision + "bf16"}, steps(4)}},
      {"fp16", {{precision + "fp16"}, steps(4)}},
      {"fp16 in micro-batches", {{precision + "fp16"}, with_micro_batches()}},
      {"recompute in fp16", {{force + "recompute", precision + "fp16"}, steps(4)}},
      {"recompute", {{force + "recompute"}, steps(4)}},
      {"recompute in bf16", {{force + "recompute", precision + "bf16"}, steps(4)}},
      {"offload", {{force + "offload", "--cox.memory.smallest_bytes=1"}, steps(4)}},
      {"a budget", {{"--cox.memory.budget=1GiB"}, steps(4)}},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const Trained here = train_on("cpu", each.training);
    const Trained there = train_on("cuda", each.training);
    CHECK(here.losses.size() == each.training.options.steps);
    const bool is_narrow = each.name.find("16") != std::string::npos;
    CHECK(is_alike(there, here, is_narrow ? kNarrowTolerance : 1e-4));
  }
}

TEST_CASE("fit evaluates on the device, with batches that its data set has on the host") {
  const auto evaluated_on = [](const std::string& device) {
    auto session = solo_session({"--cox.run.device=" + device});
    gpt2::Gpt2 model = small_gpt();
    model->to(session.device());
    AdamW optimizer(model->parameters(), {.lr = 0.01});
    const SmallText data;
    FitOptions options;
    options.epochs = 2;
    options.evaluation = &data;
    const FitResult result = fit(
        session, *model, optimizer, data,
        [&](const Batch& batch) { return model->loss(batch.inputs, batch.targets); }, options);
    std::vector<double> losses;
    for (const FitEpoch& epoch : result.epochs) losses.push_back(*epoch.evaluation_loss);
    return losses;
  };
  const std::vector<double> here = evaluated_on("cpu");
  CHECK(here.size() == 2);
  CHECK(is_alike({evaluated_on("cuda"), {}}, {here, {}}));
}

TEST_CASE("a loss scale that is too large skips the same steps on the device as on the CPU") {
  const Training training{{"--cox.precision.format=fp16", "--cox.loss_scale.initial=4e6"},
                          steps(6)};
  const Trained here = train_on("cpu", training);
  const Trained there = train_on("cuda", training);
  CHECK(here.skipped > 0);
  CHECK(here.skipped < 6);
  CHECK(there.skipped == here.skipped);
  CHECK(is_alike(there, here, kNarrowTolerance));
}

// Speed decides which products run on the device's units; fp8_units_test.cc makes the units fast.
TEST_CASE("a trainer in fp8 on the device is near what the CPU emulates") {
  const Training training{{"--cox.precision.format=fp8"}, steps(3)};
  const Trained here = train_on("cpu", training);
  const Trained there = train_on("cuda", training);
  REQUIRE(there.losses.size() == here.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    CHECK(there.losses[i] == doctest::Approx(here.losses[i]).epsilon(0.01));
}

TEST_CASE("offloaded tensors leave the device for pinned memory") {
  const auto copies_of = [](const std::string& action) {
    const std::uint64_t before = copies_to_host();
    train_on("cuda",
             {{"--cox.memory.force=*=" + action, "--cox.memory.smallest_bytes=1"}, steps(4)});
    return copies_to_host() - before;
  };
  CHECK(copies_of("offload") > copies_of("keep") + 4 * 3);  // steps, blocks
}

TEST_CASE(
    "clipping on the device differs from the CPU's by the order in which norms are added up") {
  const Trained here = train_on("cpu", {{}, with_clipping()});
  const Trained there = train_on("cuda", {{}, with_clipping()});
  REQUIRE(there.losses.size() == here.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    CHECK(std::abs(there.losses[i] - here.losses[i]) < (on_stand_in() ? 1e-6 : 1e-4));
}

TEST_CASE("dropout on the device is drawn again by recompute: the same bits with and without") {
  Training kept{{}, steps(4), 0.2};
  Training recomputed{{"--cox.memory.force=*=recompute"}, steps(4), 0.2};
  const Trained a = train_on("cuda", kept);
  const Trained b = train_on("cuda", recomputed);
  CHECK(a.losses == b.losses);
  CHECK(count_unequal(a.parameters, b.parameters) == 0);
}

TEST_CASE("a run that was saved on the device goes on there, and on the CPU, with the same bits") {
  const Trained whole = train_on("cpu", {{}, steps(6)});
  for (const std::string& second : {std::string("cuda"), std::string("cpu")}) {
    CAPTURE(second);
    const TempFolder folder;
    const std::string saves = "--cox.checkpoint.directory=" + folder.path().string();
    train_on("cuda", {{saves}, steps(3)});
    const Trained rest = train_on(second, {{saves, "--cox.checkpoint.resume=on"}, steps(6)});
    const std::vector<double> last(whole.losses.begin() + 3, whole.losses.end());
    CHECK(is_alike(rest, {last, whole.parameters}));
  }
}

// A program that reads its losses has also waited for the gradients.
TEST_CASE("a gradient that is not finite on the device is laid to its block without a wait") {
  for (const bool looks_at_losses : {true, false}) {
    CAPTURE(looks_at_losses);
    auto session = solo_session({"--cox.run.device=cuda", "--cox.precision.format=bf16"});
    gpt2::Gpt2 model = small_gpt();
    model->to(session.device());
    bool is_bad = false;
    model->named_parameters()["transformer.h.1.mlp.c_fc.weight"].register_hook(
        [&is_bad](const at::Tensor& gradient) { return is_bad ? gradient / 0 : gradient; });
    session.adopt(*model);
    const Batch batch = SmallText().get(std::vector<std::int64_t>{1, 2, 3});
    const at::Tensor inputs = batch.inputs.to(session.device());
    const at::Tensor targets = batch.targets.to(session.device());
    std::vector<std::string> blamed;
    std::uint64_t waits = 0;
    for (int step = 0; step < 8; ++step) {
      is_bad = step == 5;
      model->zero_grad();
      const std::uint64_t before = synchronisations();
      const at::Tensor loss = model->loss(inputs, targets);
      blamed.push_back(session.capabilities().numerics.blamed());
      loss.backward();
      waits = synchronisations() - before;
      if (looks_at_losses) CHECK(std::isfinite(loss.item<double>()));
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.add_(0);  // imitates an update
    }
    // Known when the next step begins; without waits, perhaps one step later.
    const bool is_late = !looks_at_losses && blamed[7] != "";
    const std::size_t told = is_late ? 7 : 6;
    for (std::size_t step = 0; step < blamed.size(); ++step)
      CHECK(blamed[step] == (step == told ? "transformer.h.1" : ""));
    CHECK(waits == 0);
  }
}

TEST_CASE("an adopted loop on the device gives the CPU's bits") {
  for (const std::string& flag :
       {std::string("--cox.run.name=plain"), std::string("--cox.precision.format=bf16"),
        std::string("--cox.memory.force=*=recompute")}) {
    CAPTURE(flag);
    const Trained here = adopt_on("cpu", {flag});
    const Trained there = adopt_on("cuda", {flag});
    CHECK(is_alike(there, here, flag.find("bf16") == std::string::npos ? 1e-4 : kNarrowTolerance));
  }
}

TEST_CASE("noise that a program draws on the device is drawn again when its pass runs again") {
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  const at::Tensor weight = at::ones({64}, at::kCUDA).requires_grad_();
  const auto gradient = [&](const at::Tensor& loss) {
    loss.backward();
    return std::exchange(weight.mutable_grad(), at::Tensor()).cpu();
  };
  cox::detail::RecordedPass pass;
  at::Tensor loss;
  {
    const cox::detail::StreamScope shown({&pass});
    loss = (weight * torch::randn({64}, at::kCUDA)).sum();
  }
  const torch::autograd::Edge root = torch::autograd::impl::gradient_edge(loss);
  const at::Tensor one = at::ones_like(loss);
  REQUIRE(pass.close({&root, 1}, {&one, 1}).ok());
  const at::Tensor first = gradient(loss);
  CHECK(gradient(pass.run()).equal(first));
}

TEST_CASE("the operators of a block are timed when the device has done them") {
  const auto session = solo_session({"--cox.run.device=cuda"});
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  const Batch batch = SmallText().get(std::vector<std::int64_t>{1, 2, 3});
  const at::Tensor inputs = batch.inputs.to(session.device());
  const at::Tensor targets = batch.targets.to(session.device());
  cox::detail::BlockWatch blocks;
  blocks.attach(*model);
  const cox::detail::BlockWatch::Following followed(blocks);
  cox::detail::VisitParts& visits = blocks.visits()->parts();
  for (std::size_t b = 0; b < blocks.size(); ++b)
    visits.steering.set_action(BlockId(static_cast<BlockId::rep>(b)), MemoryAction::recompute);
  visits.region.begin_measuring();
  cox::detail::TrialStep step(*model, [&] { return model->loss(inputs, targets); });
  const std::uint64_t before = synchronisations();
  REQUIRE(run_timed(*blocks.visits(), [&] { return step.run(); }).ok());
  const std::uint64_t waits = synchronisations() - before;
  std::size_t operators = 0;
  for (const auto& region : visits.region.end_measuring())
    operators += region ? region->graph.operators.size() : 0;
  CHECK(operators > 50);
  CHECK(waits >= 2 * operators);
}
