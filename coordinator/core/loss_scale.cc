#include "coordinator/core/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace cox {
namespace {

constexpr float kLargestHalf = 65504.0f;

// Whether gradients of the size just seen would still leave the headroom asked for.
bool has_room(const ScalerRules& rules, const ScalerStep& step) {
  if (rules.headroom_bits == 0 || !(step.amax > 0)) return true;
  const float most = std::ldexp(kLargestHalf, -static_cast<int>(rules.headroom_bits));
  return step.amax * rules.growth_factor <= most;
}

ScalerState back_off(ScalerState state, const ScalerRules& rules) {
  state.clean_steps = 0;
  if (state.overflow_streak < std::numeric_limits<std::uint32_t>::max()) ++state.overflow_streak;
  if (state.overflow_streak < rules.hysteresis) return state;
  state.scale = std::max(state.scale * rules.backoff_factor, rules.min_scale);
  return state;
}

}  // namespace

ScalerState initial_state(const ScalerRules& rules) {
  return {std::clamp(rules.initial_scale, rules.min_scale, rules.max_scale), 0, 0};
}

ScalerState advance(const ScalerState& state, const ScalerRules& rules, const ScalerStep& step) {
  if (step.overflow) return back_off(state, rules);
  ScalerState next = state;
  next.overflow_streak = 0;
  if (++next.clean_steps < rules.growth_interval) return next;
  next.clean_steps = 0;
  if (has_room(rules, step)) {
    next.scale = std::min(next.scale * rules.growth_factor, rules.max_scale);
  }
  return next;
}

Status validate(const ScalerRules& rules) {
  const auto broken = [](const std::string& field, const std::string& expected) {
    return invalid_argument("scaler." + field + ": expected " + expected);
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
