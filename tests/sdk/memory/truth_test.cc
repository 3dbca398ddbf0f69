// Predictions against counted bytes, on GPT-2: budgets from the least that any plan takes up to
// keeping everything.
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <vector>

#include "coordinator/planner/memory_facts.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/trial_step.h"
#include "sdk/src/session/memory_steering.h"
#include "tests/sdk/memory/recompute_support.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::Actions;

namespace {

constexpr int kBudgets = 24;
constexpr double kTolerance = 0.002;

gpt2::Config small_gpt() {
  gpt2::Config config;
  config.n_layer = 6;
  config.n_embd = 64;
  config.n_head = 4;
  config.vocab_size = 256;
  config.n_positions = 64;
  config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1;
  return config;
}

// A GPT-2 with a sample batch, steered as a session would.
struct Steered {
  enum class Precision { fp32, bf16_autocast };

  explicit Steered(MemoryConfig settings, Precision chosen = Precision::fp32)
      : config(std::move(settings)), precision(chosen) {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    torch::manual_seed(11);
    model = gpt2::Gpt2(small_gpt());
    model->train();
    inputs = torch::randint(256, {4, 64}, at::kLong);
    targets = torch::randint(256, {4, 64}, at::kLong);
    blocks.attach(*model);
    steering = std::make_unique<cox::detail::MemorySteering>(config, blocks, Log());
    steering->open({});
    step = std::make_unique<cox::detail::TrialStep>(*model, [this] { return loss(); });
  }

  // As a trainer would: autocast's casts of weights live as long as the step's forward pass.
  at::Tensor loss() {
    const memory_test::Autocast autocast(precision == Precision::bf16_autocast);
    return model->loss(inputs, targets);
  }

  // The highest counted level in a step under these actions.
  std::int64_t real_peak(const Actions& actions) {
    blocks.steer(actions);
    cox::detail::reset_counted_peak();
    REQUIRE(step->run().ok());
    return cox::detail::counted_memory().peak_bytes;
  }

  MemoryConfig config;
  Precision precision;
  gpt2::Gpt2 model = nullptr;
  at::Tensor inputs, targets;
  cox::detail::BlockWatch blocks;
  std::unique_ptr<cox::detail::MemorySteering> steering;
  std::unique_ptr<cox::detail::TrialStep> step;
};

MemoryConfig planned() {
  MemoryConfig config;
  config.mode = PolicyMode::on;
  return config;
}

// What TrialStep itself holds while it runs: a copy of the generator's state.
std::int64_t held_by_trial() {
  return 2 * static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().get_state().nbytes());
}

void check_budgets(Steered& gpt, const MemoryModel& known) {
  const std::int64_t least = known.front.front().peak_bytes;
  const std::int64_t most = known.front.back().peak_bytes;
  REQUIRE(gpt.step->run().ok());
  const auto gradients = gpt.step->gradients();
  for (int i = 0; i < kBudgets; ++i) {
    const std::int64_t budget = least + (most - least) * i / (kBudgets - 1);
    const auto point = lookup(known.front, budget);
    REQUIRE(point.has_value());
    const MemoryPoint& plan = known.front[*point];
    const std::int64_t real = gpt.real_peak(plan.actions);
    CAPTURE(budget);
    CAPTURE(plan.peak_bytes);
    CAPTURE(real);
    CHECK(plan.peak_bytes <= budget);
    CHECK(real <= budget + held_by_trial());
    CHECK(std::abs(static_cast<double>(real - plan.peak_bytes)) <=
          kTolerance * static_cast<double>(plan.peak_bytes) + static_cast<double>(held_by_trial()));
    CHECK(gpt.step->gradients() == gradients);
  }
}

MemoryModel measured(Steered& gpt) {
  auto problem = gpt.steering->measure(
      *gpt.model, [&] { return gpt.loss(); }, 0);
  REQUIRE_MESSAGE(problem.ok(), problem.status().text());
  auto facts = planner::memory_facts({{*problem, 0}});
  REQUIRE_MESSAGE(facts.ok(), facts.status().text());
  return facts->models.front();
}

}  // namespace

TEST_SUITE("memory truth") {
  TEST_CASE("keep and recompute: the real peak is the predicted one, within every budget") {
    Steered gpt(planned());
    const MemoryModel known = measured(gpt);
    CHECK(known.front.size() >= 6);
    CHECK(known.front.front().peak_bytes * 2 < known.front.back().peak_bytes);
    check_budgets(gpt, known);
  }

  TEST_CASE("with bf16 autocast as well") {
    Steered gpt(planned(), Steered::Precision::bf16_autocast);
    check_budgets(gpt, measured(gpt));
  }

  TEST_CASE("with a tier: offloaded blocks stay within every budget, too") {
    const TempFolder folder;
    MemoryConfig config = planned();
    config.tier_directory = folder.path().string();
    config.smallest_bytes = 4096;
    Steered gpt(config);
    const MemoryModel known = measured(gpt);
    bool offloads = false;
    for (const MemoryPoint& point : known.front) {
      for (const MemoryAction action : point.actions) {
        offloads = offloads || action == MemoryAction::offload;
      }
    }
    CHECK(offloads);
    check_budgets(gpt, known);
  }
}
