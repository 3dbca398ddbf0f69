// Guard: protects a run from its own numbers. Losses or gradients that are not finite for several
// rounds in a row, or a loss far above its recent course, make it hold all knobs still and, when
// that does not help and snapshots exist, go back to before the trouble. Skipping a single bad step
// is not its business: all ranks do that in lockstep within the step.
//
//   not finite   nonfinite_streak rounds in a row: hold; twice as many: roll back
//   loss spike   spike_rounds in a row with loss > median + spike_sigmas * 1.4826 * MAD and
//                loss > spike_ratio * median of the last window_rounds: hold and roll back
//   recovered    nonfinite_streak clean rounds in a row
//
// It sees fresh reports only (collect() sorts out the others) and learns nothing from a round
// without any. A wish that was held back is proposed again until the plan shows it.
#pragma once

#include "coordinator/core/policy.h"

namespace cox {

class Guard final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::guard; }
  std::string_view name() const override { return "guard"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
