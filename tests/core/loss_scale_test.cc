#include "coordinator/core/loss_scale.h"

#include <cmath>
#include <limits>
#include <string>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::advance;
using cox::ScalerRules;
using cox::ScalerState;
using cox::ScalerStep;

ScalerRules torch_rules() {
  ScalerRules rules;
  rules.min_scale = 0;
  rules.max_scale = std::numeric_limits<float>::max();
  rules.headroom_bits = 0;
  return rules;
}

// GradScaler's update, written from its documentation.
struct TorchScaler {
  float scale;
  int growth_tracker = 0;

  void update(const ScalerRules& rules, bool found_inf) {
    if (found_inf) {
      scale = scale * rules.backoff_factor;
      growth_tracker = 0;
      return;
    }
    if (growth_tracker + 1 != static_cast<int>(rules.growth_interval)) {
      ++growth_tracker;
      return;
    }
    const float grown = scale * rules.growth_factor;
    if (std::isfinite(grown)) scale = grown;
    growth_tracker = 0;
  }
};

ScalerState after(const ScalerRules& rules, ScalerState state, const std::string& steps,
                  float gradient) {
  for (const char step : steps) {
    state = advance(state, rules, {step == 'x', step == 'x' ? 0 : gradient * state.scale});
  }
  return state;
}

TEST_SUITE("core.loss_scale") {
  TEST_CASE("configured like GradScaler it is GradScaler, step by step") {
    cox::testing::Random random(3);
    for (int sequence = 0; sequence < 300; ++sequence) {
      ScalerRules rules = torch_rules();
      rules.initial_scale = std::ldexp(1.0f, static_cast<int>(random.below(100)) - 20);
      rules.growth_factor = static_cast<float>(1 + 3 * random.uniform());
      rules.backoff_factor = static_cast<float>(0.05 + 0.9 * random.uniform());
      rules.growth_interval = static_cast<std::uint32_t>(1 + random.below(6));
      const double bad = random.uniform() * 0.6;
      ScalerState ours = cox::initial_state(rules);
      TorchScaler torch{rules.initial_scale};
      for (int step = 0; step < 400; ++step) {
        const bool overflow = random.chance(bad);
        ours = advance(ours, rules, {overflow, static_cast<float>(random.uniform() * 60000)});
        torch.update(rules, overflow);
        REQUIRE(ours.scale == torch.scale);
        REQUIRE(ours.clean_steps == static_cast<std::uint32_t>(torch.growth_tracker));
      }
    }
  }

  TEST_CASE("without known gradients it backs off and grows by one factor, within its bounds") {
    ScalerRules rules;
    rules.initial_scale = 8;
    rules.max_scale = 16;
    rules.growth_interval = 3;
    CHECK(after(rules, cox::initial_state(rules), "x", 0).scale == 4);
    CHECK(after(rules, cox::initial_state(rules), "xxxxxxxx", 0).scale == 1);
    CHECK(after(rules, cox::initial_state(rules), "...", 0).scale == 16);
    CHECK(after(rules, cox::initial_state(rules), ".........", 0).scale == 16);
  }

  TEST_CASE("hysteresis lets the first overflows of a streak pass") {
    ScalerRules rules = torch_rules();
    rules.hysteresis = 3;
    const ScalerState start = cox::initial_state(rules);
    CHECK(after(rules, start, "xx", 1).scale == 65536);
    CHECK(after(rules, start, "xx.xx", 1).scale == 65536);
    CHECK(after(rules, start, "xxx", 1).scale == 32768);
  }

  TEST_CASE("it goes down before gradients overflow, and keeps the headroom") {
    ScalerRules rules;
    const ScalerState start = cox::initial_state(rules);
    CHECK(after(rules, start, ".", 0.49f).scale == 65536);
    CHECK(after(rules, start, ".", 0.6f).scale == 32768);
    CHECK(after(rules, start, ".", 100).scale == 256);
    rules.headroom_bits = 4;
    CHECK(after(rules, start, ".", 100).scale == 32);
  }

  TEST_CASE("it grows after an interval where the largest gradients of two intervals allow it") {
    ScalerRules rules;
    rules.growth_interval = 4;
    const ScalerState start = cox::initial_state(rules);
    CHECK(after(rules, start, "....", 0.2f).scale == 131072);
    CHECK(after(rules, start, "....", 0.3f).scale == 65536);
    ScalerState state = after(rules, start, ".", 0.3f);
    state = after(rules, state, "...", 0.001f);
    CHECK(state.scale == 65536);
    state = after(rules, state, "....", 0.001f);
    CHECK(state.scale == 65536);
    state = after(rules, state, "....", 0.001f);
    CHECK(state.scale == 131072);
  }

  TEST_CASE("overflows cost more and more until an interval passes without any") {
    ScalerRules rules;
    rules.growth_interval = 4;
    rules.min_scale = 0x1p-60f;
    const ScalerState calm = after(rules, cox::initial_state(rules), ".", 0.001f);
    CHECK(after(rules, calm, "x", 0.001f).scale == 0x1p10f);
    CHECK(after(rules, calm, "xx", 0.001f).scale == 0x1p-2f);
    CHECK(after(rules, calm, "x.x", 0.001f).scale == 0x1p-2f);
    CHECK(after(rules, calm, "x....x", 0.001f).scale == 0x1p5f);
    CHECK(after(rules, calm, "xxxxxxxxxxxx", 0.001f).scale == 0x1p-60f);
  }

  TEST_CASE("whatever happens the scale stays within its bounds and comes back up") {
    cox::testing::Random random(9);
    for (int sequence = 0; sequence < 200; ++sequence) {
      ScalerRules rules;
      rules.growth_interval = static_cast<std::uint32_t>(1 + random.below(5));
      ScalerState state = cox::initial_state(rules);
      for (int step = 0; step < 300; ++step) {
        const float odd[] = {0, 1, 65504, std::nanf(""), HUGE_VALF, 1e-40f, -1};
        state = advance(state, rules, {random.chance(0.3), odd[random.below(std::size(odd))]});
        REQUIRE(state.scale >= rules.min_scale);
        REQUIRE(state.scale <= rules.max_scale);
      }
      state = after(rules, state, std::string(400, '.'), 0x1p-12f);
      CHECK(state.scale == rules.max_scale);
    }
  }

  TEST_CASE("rules out of range are refused by the name of their field") {
    ScalerRules rules;
    rules.hysteresis = 0;
    CHECK(cox::validate(rules).message().find("hysteresis") != std::string::npos);
    rules = {};
    rules.headroom_bits = 16;
    CHECK(cox::validate(rules).message().find("headroom_bits") != std::string::npos);
  }
}

}  // namespace
