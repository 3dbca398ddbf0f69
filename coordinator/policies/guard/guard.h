// Guard: protects a run from its own numerics. If losses or gradients are not finite for several
// rounds in a row, or a loss is far above its recent course, the guard asks for a hold of all
// knobs. If a hold does not help and snapshots exist, the guard asks for a rollback to a round
// before the trouble. All ranks skip a single bad step in lockstep within the step, without the
// guard. Stateless and thread-safe; Decide owns the state.
//
//   not finite   nonfinite_streak rounds in a row: hold; twice as many: roll back
//   loss spike   spike_rounds in a row with loss > median + spike_sigmas * 1.4826 * MAD and
//                loss > spike_ratio * median of the last window_rounds: hold and roll back
//   recovered    nonfinite_streak clean rounds in a row
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

// Decide asks the guard first. The guard reads fresh reports only, because collect() drops the
// others, and learns nothing from a round without any. A request that was held back is proposed
// again until the plan has it.
class Guard final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::guard; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
