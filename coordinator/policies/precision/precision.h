// Precision: decides which number format each block computes in, the same on all ranks. Before the
// first round it goes by settings and measured times, later by evidence of all ranks (model.h).
//
//   format given   A block gets precision.format where it may have it. Trouble is only reported.
//   auto, start    A block gets bf16 where that is faster than fp32, else fp16 where that is
//                  faster, else fp32.
//   auto, later    A block gets 8 bits while the noise of its gradients hides the rounding. It goes
//                  to a safer format on the first evidence against the one in use.
//   memory         While memory is nearly full a block gets bf16 instead of fp32, and never fp16
//                  instead of bf16.
//
// Requests of the program (PrecisionRequest) win over settings that force, not over those that
// forbid. A change that was held back is proposed again until the plan shows it. Stateless and
// thread-safe; Decide owns the state.
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

class PrecisionPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::precision; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
