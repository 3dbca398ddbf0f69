// Setup and check shared by all loops that average gradients: Reducer (also within Trainer) and
// ManualParallel. Training thread only.
#pragma once

#include <cmath>

#include "coordinator/core/status.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {

// Returns how gradients travel between the ranks of a session. Refers to `state`.
inline ReductionSetup reduction_setup(SessionState& state) {
  return {state.job().data(),
          state.job().world().wait_policy(),
          state.job().config().reduction,
          state.job().world().devices(),
          Seconds(state.job().config().control.nccl_seconds),
          [&state] { state.control().send_masks_off(); }};
}

// Returns invalid_argument unless `weight`, a loss's or a gradient's, is finite and not below 0.
inline Status check_weight(double weight) {
  if (weight >= 0 && std::isfinite(weight)) return ok_status();
  return invalid_argument("expected a weight that is finite and not below 0, found ", weight);
}

}  // namespace cox::detail
