// The loss scaler as a value: the factor for fp16 gradients, and its reaction to overflows and
// gradients. Runs in lockstep on every rank, from values that the step's reduction agreed on, so no
// rank can differ. The policy `loss_scale` only sets the rules. Pure.
#pragma once

#include <cstdint>

#include "coordinator/core/fields.h"
#include "coordinator/core/status.h"

namespace cox {

// ScalerRules says how a loss scaler reacts within a step, in lockstep on all ranks.
struct ScalerRules {
  float initial_scale = 65536.0f;
  float growth_factor = 2.0f;            // >= 1
  float backoff_factor = 0.5f;           // in (0, 1)
  std::uint32_t growth_interval = 2000;  // clean steps before a growth, >= 1
  float min_scale = 1.0f;                // >= 0
  float max_scale = 16777216.0f;
  std::uint32_t hysteresis = 1;     // overflows in a row before the first backoff, >= 1
  std::uint32_t headroom_bits = 1;  // kept free below fp16's largest number; 0 = GradScaler's rule
  static auto fields(auto& self) {
    return message("ScalerRules", field(1, "initial_scale", self.initial_scale),
                   field(2, "growth_factor", self.growth_factor),
                   field(3, "backoff_factor", self.backoff_factor),
                   field(4, "growth_interval", self.growth_interval),
                   field(5, "min_scale", self.min_scale), field(6, "max_scale", self.max_scale),
                   field(7, "hysteresis", self.hysteresis),
                   field(8, "headroom_bits", self.headroom_bits));
  }
  friend bool operator==(const ScalerRules&, const ScalerRules&) = default;
};

// ScalerState is the state of a scaler between steps. Saved with the training state.
struct ScalerState {
  float scale = 65536.0f;
  std::uint32_t clean_steps = 0;      // since the last overflow or growth
  std::uint32_t overflow_streak = 0;  // overflows in a row
  float peak = 0;                     // largest gradient of this interval, without the scale ...
  float former_peak = 0;              // ... and of the interval before; 0 = not known
  std::uint32_t strikes = 0;          // overflows since the last interval without any
  friend bool operator==(const ScalerState&, const ScalerState&) = default;
};

// ScalerStep is the outcome of one step, agreed on in the step's reduction.
struct ScalerStep {
  bool overflow = false;  // some gradient was not finite: the update was skipped
  float amax = 0;         // largest finite scaled gradient seen in fp16; 0 = not known
};

ScalerState initial_state(const ScalerRules& rules);
// Returns the state for the next step. The scale never leaves [min_scale, max_scale].
//
// With headroom_bits 0, or while no largest gradient is known, the result equals torch's GradScaler
// (torch/amp/grad_scaler.py, aten/src/ATen/native/AmpKernels.cpp), given hysteresis 1 and min_scale
// 0. Otherwise the scaler also follows the largest gradients of the last one to two growth
// intervals. The scale does not grow if the growth would bring the largest gradients nearer to
// fp16's largest number than the headroom. The scale shrinks before an overflow if gradients come
// nearer by themselves.
//
// An overflow shows that a gradient was too large, but not by how much. The first overflow
// therefore costs 6 backoffs at once, and each further one twice as many as the last, until a
// growth interval has passed without any. The scale recovers by slow growth. If too many values
// underflow meanwhile, the policy makes the growth faster.
ScalerState advance(const ScalerState& state, const ScalerRules& rules, const ScalerStep& step);

// Returns invalid_argument naming the field that is out of range.
Status validate(const ScalerRules& rules);

}  // namespace cox
