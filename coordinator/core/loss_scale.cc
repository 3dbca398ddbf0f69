#include "coordinator/core/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace cox {
namespace {

constexpr float kLargestHalf = 65504.0f;

constexpr std::uint32_t kMostStrikes = 6;
constexpr int kMostBackoffs = 160;  // of one step; bounds the loops

float most_of(const ScalerRules& rules) {
  return std::ldexp(kLargestHalf, -static_cast<int>(rules.headroom_bits));
}

bool knows_gradients(const ScalerState& state, const ScalerStep& step) {
  return step.amax > 0 || state.peak > 0 || state.former_peak > 0;
}

// Moves the scale by one factor at a time, as torch does, whatever the gradients are.
ScalerState advance_plainly(ScalerState state, const ScalerRules& rules, const ScalerStep& step) {
  if (step.overflow) {
    state.scale = std::max(state.scale * rules.backoff_factor, rules.min_scale);
    return state;
  }
  if (state.clean_steps < rules.growth_interval) return state;
  state.clean_steps = 0;
  const float grown = state.scale * rules.growth_factor;
  if (std::isfinite(grown)) state.scale = std::min(grown, rules.max_scale);
  return state;
}

ScalerState back_off(ScalerState state, const ScalerRules& rules) {
  state.strikes = std::min(state.strikes + 1, kMostStrikes);
  const int backoffs = std::min(3 << state.strikes, kMostBackoffs);
  for (int i = 0; i < backoffs && state.scale > rules.min_scale; ++i) {
    state.scale *= rules.backoff_factor;
  }
  state.scale = std::max(state.scale, rules.min_scale);
  return state;
}

ScalerState follow(ScalerState state, const ScalerRules& rules, float amax) {
  const float most = most_of(rules);
  const float gradient = state.scale > 0 ? amax / state.scale : 0;
  if (std::isfinite(gradient)) state.peak = std::max(state.peak, gradient);
  for (int i = 0; i < kMostBackoffs && state.peak * state.scale > most; ++i) {
    state.scale *= rules.backoff_factor;
  }
  state.scale = std::max(state.scale, rules.min_scale);
  if (state.clean_steps < rules.growth_interval) return state;
  const float grown = std::min(state.scale * rules.growth_factor, rules.max_scale);
  const bool has_room = std::max(state.peak, state.former_peak) * grown <= most;
  if (has_room && grown > state.scale) state.scale = grown;
  state.former_peak = state.peak;
  state.peak = std::isfinite(gradient) ? gradient : 0;
  state.strikes = state.clean_steps = 0;
  return state;
}

}  // namespace

ScalerState initial_state(const ScalerRules& rules) {
  ScalerState state;
  state.scale = std::clamp(rules.initial_scale, rules.min_scale, rules.max_scale);
  return state;
}

ScalerState advance(const ScalerState& state, const ScalerRules& rules, const ScalerStep& step) {
  ScalerState next = state;
  const float amax = std::isfinite(step.amax) && step.amax > 0 ? step.amax : 0;
  const bool plain = rules.headroom_bits == 0 || !knows_gradients(state, {step.overflow, amax});
  if (!step.overflow) {
    next.overflow_streak = 0;
    ++next.clean_steps;
    return plain ? advance_plainly(next, rules, step) : follow(next, rules, amax);
  }
  next.clean_steps = 0;
  if (next.overflow_streak < std::numeric_limits<std::uint32_t>::max()) ++next.overflow_streak;
  if (next.overflow_streak < rules.hysteresis) return next;
  return plain ? advance_plainly(next, rules, step) : back_off(next, rules);
}

Status validate(const ScalerRules& rules) {
  const auto broken = [](const std::string& field, const std::string& expected) {
    return invalid_argument("scaler.", field, ": expected ", expected);
  };
  if (!(rules.min_scale >= 0) || !std::isfinite(rules.min_scale)) {
    return broken("min_scale", "a finite number of at least 0");
  }
  if (!(rules.max_scale >= rules.min_scale) || !std::isfinite(rules.max_scale)) {
    return broken("max_scale", "a finite number of at least min_scale");
  }
  if (!(rules.initial_scale > 0 && rules.initial_scale >= rules.min_scale &&
        rules.initial_scale <= rules.max_scale)) {
    return broken("initial_scale", "a number above 0, from min_scale to max_scale");
  }
  if (!(rules.growth_factor >= 1) || !std::isfinite(rules.growth_factor)) {
    return broken("growth_factor", "a finite number of at least 1");
  }
  if (!(rules.backoff_factor > 0 && rules.backoff_factor < 1)) {
    return broken("backoff_factor", "a number between 0 and 1");
  }
  if (rules.growth_interval < 1) return broken("growth_interval", "at least 1 step");
  if (rules.hysteresis < 1) return broken("hysteresis", "at least 1 overflow");
  if (rules.headroom_bits > 15) return broken("headroom_bits", "0 to 15 bits");
  return ok_status();
}

}  // namespace cox
