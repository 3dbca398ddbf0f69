// Operators of followed and adopted models, from the stream to the run directory and the signal.
#include "sdk/src/blocks/operator_watch.h"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/io/file.h"
#include "coxswain/adamw.h"
#include "coxswain/trainer.h"
#include "metrics/records/operator_table_file.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/session/session_state.h"
#include "solo.h"
#include "tests/sdk/temp_folder.h"
#include "tests/sdk/training/small_training.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

constexpr std::uint64_t kEvery = OperatorWatch::kEverySteps;
// FLOPs of one step: four products of 32 rows by 8 by 8. The first product's operand needs no
// gradient.
constexpr double kProduct = 2.0 * 32 * 8 * 8;
constexpr double kForward = 4 * kProduct;
constexpr double kBackward = 7 * kProduct;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) model->push_back(torch::nn::Linear(8, 8));
  return model;
}

void pass(torch::nn::Sequential& model, std::int64_t rows = 32) {
  model->forward(torch::randn({rows, 8})).sum().backward();
}

// Runs the watch in steps that a BlockWatch follows.
struct Watched {
  Watched() { blocks.attach(*model); }
  ~Watched() { blocks.release(); }

  // Returns the table of the step; null if there is none.
  std::shared_ptr<const OperatorTable> step(std::int64_t rows = 32) {
    const Plan plan;
    StepOutput output;
    watch.begin_step();
    blocks.begin_step();
    pass(model, rows);
    const StepEnd end{RankId(0), RoundId(steps), plan, static_cast<std::uint64_t>(rows),
                      StepId(steps)};
    ++steps;
    watch.end_step(end, output);
    blocks.end_step(end, output);
    return output.operators;
  }
  float flops_of(std::uint32_t samples) const {
    RankSignal signal;
    signal.samples = samples;
    watch.sign(signal);
    return signal.flops;
  }

  torch::nn::Sequential model = make_model();
  BlockWatch blocks;
  OperatorWatch watch{blocks};
  std::uint64_t steps = 0;
};

OperatorTable table_in(const std::filesystem::path& run) {
  const auto text = io::read_file(run / "rank0" / "operators.json", 1 << 20);
  REQUIRE_MESSAGE(text.ok(), text.status().message());
  const auto table = io::read_operator_table(*text);
  REQUIRE_MESSAGE(table.ok(), table.status().message());
  return *table;
}

void check_flops(const OperatorTable& table) {
  CHECK(sum_of(table.rows).flops == OperatorFlops{table.steps * kForward, table.steps * kBackward});
  const auto blocks = by_block(table);
  REQUIRE(blocks.size() == 4);
  CHECK(blocks[0].flops == OperatorFlops{table.steps * kProduct, table.steps * kProduct});
  CHECK(blocks[3].flops == OperatorFlops{table.steps * kProduct, table.steps * 2 * kProduct});
}

using Settings = std::vector<std::string>;
const Settings kFp8 = {"--cox.precision.force=*=fp8", "--cox.precision.emulate=on"};

// Returns the table of an adopted loop of six steps under these settings.
OperatorTable adopted(torch::nn::Sequential model, const at::Tensor& x, Settings settings) {
  const TempFolder folder;
  const std::string run = (folder / "run").string();
  settings.push_back("--cox.run.directory=" + run);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto session = solo_session(settings);
  session.adopt(*model);
  for (int i = 0; i < 6; ++i) {
    optimizer.zero_grad();
    model->forward(x).sum().backward();
    optimizer.step();
  }
  session.finish();
  return table_in(run);
}

}  // namespace

TEST_SUITE("operator watch") {
  TEST_CASE("the third step and then one in 64 is counted, and samples add up") {
    Watched watched;
    std::vector<std::uint64_t> sampled;
    std::shared_ptr<const OperatorTable> newest;
    for (std::uint64_t step = 0; step < 2 * kEvery; ++step) {
      auto table = watched.step();
      if (!table) continue;
      sampled.push_back(step);
      newest = std::move(table);
    }
    CHECK(sampled == std::vector<std::uint64_t>{2, kEvery + 2});
    REQUIRE(newest);
    CHECK(newest->steps == 2);
    CHECK(newest->newest == StepId(kEvery + 2));
    check_flops(*newest);
    for (const BlockTime& block : newest->blocks) {
      CHECK(block.forward_seconds > 0);
      CHECK(block.backward_seconds > 0);
    }
  }

  TEST_CASE("a signal has the FLOPs of its samples, and none before they are known") {
    Watched watched;
    for (int i = 0; i < 2; ++i) watched.step();
    CHECK(watched.flops_of(32) == 0);
    watched.step();
    CHECK(watched.flops_of(32) == static_cast<float>(kForward + kBackward));
    CHECK(watched.flops_of(48) == static_cast<float>(1.5 * (kForward + kBackward)));
    CHECK(watched.flops_of(0) == static_cast<float>(kForward + kBackward));
    watched.watch.release();
    CHECK(watched.flops_of(32) == 0);
  }

  TEST_CASE("profiles have the FLOPs of their blocks, and are sent again when they are known") {
    Watched watched;
    for (int i = 0; i < 2; ++i) watched.step();
    while (watched.blocks.next_fragment().kind != FragmentKind::none) {
    }
    watched.step();
    std::vector<float> flops;
    for (int i = 0; i < 4; ++i) {
      const auto profile = read_block_profile(watched.blocks.next_fragment());
      REQUIRE(profile.ok());
      flops.push_back(profile->flops / static_cast<float>(kProduct));
    }
    CHECK(flops == std::vector<float>{2, 3, 3, 3});
    CHECK(watched.blocks.next_fragment().kind == FragmentKind::none);
  }

  TEST_CASE("only the forward pass is counted: no evaluation, no optimizer, no backward pass") {
    Watched watched;
    torch::optim::SGD optimizer(watched.model->parameters(), 0.1);
    for (int i = 0; i < 2; ++i) watched.step();
    const Plan plan;
    StepOutput output;
    watched.watch.begin_step();
    watched.blocks.begin_step();
    {
      const at::NoGradGuard no_grad;
      watched.model->forward(torch::randn({100, 8}));
    }
    pass(watched.model);
    optimizer.step();
    watched.watch.end_step({RankId(0), RoundId(2), plan, 32, StepId(2)}, output);
    watched.blocks.end_step({RankId(0), RoundId(2), plan, 32, StepId(2)}, output);
    REQUIRE(output.operators);
    check_flops(*output.operators);
    for (const OperatorRow& row : output.operators->rows) {
      CAPTURE(row.name);
      CHECK(row.name != "aten::add_");
      CHECK(row.calls <= 2);
    }
  }

  TEST_CASE("a run directory holds the operators of an adopted loop") {
    const OperatorTable table = adopted(make_model(), torch::randn({32, 8}), {});
    CHECK(table.steps == 1);
    CHECK(table.newest == StepId(2));
    check_flops(table);
  }

  TEST_CASE("a run directory holds the operators of a Trainer's model, which marks no blocks") {
    const TempFolder folder;
    const std::string run = (folder / "run").string();
    SmallModel model;
    AdamW optimizer(model->parameters(), {.lr = 0.01});
    auto session = solo_session({"--cox.run.directory=" + run});
    TrainerOptions options;
    options.steps = 4;
    options.global_batch = 4;
    Trainer trainer(session, *model, optimizer, options);
    const SmallData data;
    for (auto& step : trainer.steps(data)) {
      step.backward(step.forward([&] { return model->loss(step.batch()); }));
      step.update();
    }
    session.finish();
    const OperatorTable table = table_in(run);
    CHECK(table.newest == StepId(2));
    constexpr double kFirst = 2.0 * 4 * 6 * 16, kSecond = 2.0 * 4 * 16 * 3;
    CHECK(sum_of(table.rows).flops == OperatorFlops{kFirst + kSecond, kFirst + 2 * kSecond});
  }

  TEST_CASE("a loop of two steps has no table") {
    const TempFolder folder;
    auto model = make_model();
    torch::optim::SGD optimizer(model->parameters(), 0.01);
    auto session = solo_session({"--cox.run.directory=" + (folder / "run").string()});
    session.adopt(*model);
    for (int i = 0; i < 2; ++i) {
      optimizer.zero_grad();
      pass(model);
      optimizer.step();
    }
    session.finish();
    CHECK(std::filesystem::exists(folder / "run" / "rank0" / "run.json"));
    CHECK_FALSE(std::filesystem::exists(folder / "run" / "rank0" / "operators.json"));
  }

  TEST_CASE("formats, recompute and tapes do not change the FLOPs of the model") {
    for (const Settings& settings :
         {Settings{"--cox.memory.force=*=recompute"}, Settings{"--cox.precision.force=*=bf16"},
          Settings{"--cox.memory.force=*=recompute", "--cox.precision.force=*=bf16"}, kFp8}) {
      CAPTURE(settings);
      const OperatorTable table = adopted(make_model(), torch::randn({32, 8}), settings);
      CHECK(table.newest == StepId(2));
      check_flops(table);
    }
  }

  TEST_CASE("a convolution in FP8 has the FLOPs of one in float") {
    const auto make = [] {
      return torch::nn::Sequential(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)),
          torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4, 2, 3).stride(2)));
    };
    const at::Tensor images = torch::randn({2, 3, 9, 9});
    const OperatorTable plain = adopted(make(), images, {});
    const OperatorTable narrow = adopted(make(), images, kFp8);
    CHECK(by_operator(plain, "*")[0].name == "aten::convolution");
    const auto names = by_operator(narrow, "*");
    CHECK(std::ranges::find(names, "coxswain::fp8_product", &OperatorRow::name) != names.end());
    CHECK(sum_of(plain.rows).flops->forward == 2.0 * 2 * 49 * (4 * 3 * 9 + 4 * 2 * 9));
    CHECK(sum_of(narrow.rows).flops == sum_of(plain.rows).flops);
  }
}
