// Predicted against counted bytes on GPT-2: budgets from the smallest plan's up to keeping
// everything.
#include <algorithm>
#include <cmath>

#include "tests/sdk/memory/steered_gpt.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::test::Arithmetic;
using cox::test::Gradients;
using cox::test::SampleShape;
using cox::test::SteeredGpt;

namespace {

constexpr int kBudgets = 12;  // `scripts/bench M4` has 24
constexpr double kTolerance = 0.002;

SampleShape small() {
  SampleShape shape;
  shape.model.n_layer = 6;
  shape.model.n_embd = 64;
  shape.model.n_positions = 64;
  return shape;
}

void check_budgets(SteeredGpt& gpt, const MemoryModel& known) {
  const std::int64_t least = known.front.front().peak_bytes;
  const std::int64_t most = known.front.back().peak_bytes;
  const auto held = SteeredGpt::held_by_trial();
  gpt.run(known.front.back().actions);
  const auto gradients = gpt.gradients();
  for (int i = 0; i < kBudgets; ++i) {
    const std::int64_t budget = least + (most - least) * i / (kBudgets - 1);
    const auto point = lookup(known.front, budget);
    REQUIRE(point.has_value());
    const MemoryPoint& plan = known.front[*point];
    const std::int64_t real = gpt.run(plan.actions).peak_bytes;
    CAPTURE(budget);
    CAPTURE(plan.peak_bytes);
    CAPTURE(real);
    CHECK(plan.peak_bytes <= budget);
    CHECK(real <= budget + held);
    CHECK(std::abs(static_cast<double>(real - plan.peak_bytes)) <=
          kTolerance * static_cast<double>(plan.peak_bytes) + static_cast<double>(held));
    CHECK((gpt.gradients() == gradients));
  }
}

bool uses(const MemoryFront& front, MemoryAction action) {
  return std::any_of(front.begin(), front.end(), [&](const MemoryPoint& point) {
    return std::count(point.actions.begin(), point.actions.end(), action) > 0;
  });
}

}  // namespace

TEST_SUITE("memory truth") {
  TEST_CASE("keep and recompute: the real peak is the predicted one, within every budget") {
    SteeredGpt gpt(small());
    const MemoryModel known = gpt.measure();
    CHECK(known.front.size() >= 6);
    CHECK(known.front.front().peak_bytes * 2 < known.front.back().peak_bytes);
    check_budgets(gpt, known);
  }

  TEST_CASE("under bf16 autocast the real peak is the predicted one as well") {
    SteeredGpt gpt(small(), SteeredGpt::planned(), Arithmetic::bf16_autocast);
    check_budgets(gpt, gpt.measure());
  }

  TEST_CASE("gradients that leave as they are complete take less memory and stay the same") {
    MemoryPoint least;
    cox::detail::GradientPrints gradients;
    {
      SteeredGpt kept(small());
      least = kept.measure().front.front();
      kept.run(least.actions);
      gradients = kept.gradients();
    }
    SteeredGpt gpt(small(), SteeredGpt::planned(), Arithmetic::fp32, Gradients::released);
    const MemoryModel known = gpt.measure();
    CHECK(known.front.front().peak_bytes < least.peak_bytes);
    gpt.run(least.actions);
    CHECK((gpt.gradients() == gradients));
    check_budgets(gpt, known);
  }

  TEST_CASE("plans that offload to a tier stay within every budget, too") {
    const TempFolder folder;
    MemoryConfig config = SteeredGpt::planned();
    config.tier_directory = folder.path().string();
    config.smallest_bytes = 4096;
    SteeredGpt gpt(small(), config);
    const MemoryModel known = gpt.measure();
    CHECK(uses(known.front, MemoryAction::offload));
    check_budgets(gpt, known);
  }
}
