// The loss scaler as a value: what fp16 gradients are multiplied with before they are computed, and
// how that number follows what was seen. Runs in lockstep on every rank, from values that the
// step's reduction agreed on, so no rank can differ; the policy `loss_scale` only sets the rules.
// Pure. With hysteresis 1, headroom_bits 0 and min_scale 0 it does what torch's GradScaler does
// (torch/amp/grad_scaler.py, aten/src/ATen/native/AmpKernels.cpp).
#pragma once

#include <cstdint>

#include "coordinator/core/status.h"

namespace cox {

// How a loss scaler reacts within a step, in lockstep on all ranks.
struct ScalerRules {
  float initial_scale = 65536.0f;
  float growth_factor = 2.0f;            // >= 1
  float backoff_factor = 0.5f;           // in (0, 1)
  std::uint32_t growth_interval = 2000;  // clean steps before a growth, >= 1
  float min_scale = 1.0f;                // >= 0
  float max_scale = 16777216.0f;
  std::uint32_t hysteresis = 1;     // overflows in a row before the first backoff, >= 1
  std::uint32_t headroom_bits = 1;  // no growth that leaves less below fp16's largest; 0 = ignore
  friend bool operator==(const ScalerRules&, const ScalerRules&) = default;
};

// What a scaler remembers. Saved with the training state.
struct ScalerState {
  float scale = 65536.0f;
  std::uint32_t clean_steps = 0;      // since the last overflow or growth
  std::uint32_t overflow_streak = 0;  // overflows in a row
  friend bool operator==(const ScalerState&, const ScalerState&) = default;
};

// One step as all ranks agreed on it.
struct ScalerStep {
  bool overflow = false;  // some gradient was not finite: the update was skipped
  float amax = 0;         // largest finite scaled gradient seen in fp16; 0 = not known
};

ScalerState initial_state(const ScalerRules& rules);
// The state for the next step. Never leaves [min_scale, max_scale].
ScalerState advance(const ScalerState& state, const ScalerRules& rules, const ScalerStep& step);

// invalid_argument naming the field that is out of range.
Status validate(const ScalerRules& rules);

}  // namespace cox
