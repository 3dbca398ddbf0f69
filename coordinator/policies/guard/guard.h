// Guard: protects a run from its own numerics. When losses or gradients are not finite for several
// rounds in a row, or a loss is far above its recent course, it asks for a hold of all knobs and,
// where that does not help and snapshots exist, for a rollback to before the trouble. Skipping a
// single bad step is not its business: all ranks do that in lockstep within the step.
//
//   not finite   nonfinite_streak rounds in a row: hold; twice as many: roll back
//   loss spike   spike_rounds in a row with loss > median + spike_sigmas * 1.4826 * MAD and
//                loss > spike_ratio * median of the last window_rounds: hold and roll back
//   recovered    nonfinite_streak clean rounds in a row
//
// Decide asks the guard first. It sees fresh reports only (collect() drops the others) and learns
// nothing from a round without any. A request that was held back is proposed again until the plan
// shows it. Stateless and thread-safe; Decide owns the state.
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

class Guard final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::guard; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
