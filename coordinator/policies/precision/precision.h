// Precision: decides which number format each block computes in, the same on all ranks. Uses
// settings and measured times before the first round, and later the evidence of all ranks
// (block_formats.h). Stateless and thread-safe; Decide owns the state.
//
//   format given   A block gets precision.format if allowed there. Trouble is only reported.
//   auto, start    A block gets bf16 if bf16 is faster than fp32, else fp16 if fp16 is faster,
//                  else fp32.
//   auto, later    A block gets 8 bits while the noise of its gradients hides the rounding, and a
//                  safer format on the first evidence against the one in use.
//   memory         While memory is nearly full a block gets bf16 instead of fp32, and never fp16
//                  instead of bf16.
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

// Requests of the program (PrecisionRequest) win over settings that force a format, not over
// settings that forbid one. A change that was held back is proposed again until the plan has it.
class PrecisionPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::precision; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
