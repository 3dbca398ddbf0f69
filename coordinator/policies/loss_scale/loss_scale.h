// LossScale: sets the rules of the loss scaler and names the block in which values stopped being
// finite. The scaler itself reacts within the step, on every rank (core/loss_scale.h). If no block
// computes in fp16, the policy only names blocks. Stateless and thread-safe; Decide owns the state.
//
//   named       block, direction and rank of an overflow, or an overflow outside of all blocks;
//               once per streak, which ends after kQuietRounds without an overflow
//   underflow   many gradients in fp16 become zero while the largest would allow a larger scale:
//               the scaler grows sooner (a shorter growth interval) until the underflow is over or
//               values overflow; after an overflow the policy waits longer the next time
//   recurrent   overflows come back: the scaler grows later (a longer growth interval, as long as
//               few gradients underflow) and never beyond the scale that the gradients seen allow
//   floor       overflows go on at the smallest scale: the policy names the block and proposes
//               nothing more
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

class LossScalePolicy final : public Policy {
 public:
  static constexpr std::uint32_t kQuietRounds = 32;

  PolicyKind kind() const override { return PolicyKind::loss_scale; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
