// LossScale: sets the rules of the loss scaler, which itself reacts within the step on every rank
// (core/loss_scale.h), and names the block in which values stopped being finite.
//
//   named       block, direction and rank of an overflow, or that it arose outside of all blocks;
//               once per streak, which ends after kQuietRounds without one
//   underflow   many gradients in fp16 become zero while the largest would allow a larger scale:
//               the scaler forgets sooner what overflowed (a shorter growth interval), until that
//               is over or something overflows; then it is more patient the next time
//   recurrent   overflows come back: the scaler remembers longer (a longer growth interval, as long
//               as little underflows) and never grows beyond what the gradients seen allow
//   floor       overflows go on at the smallest scale: the policy says in which block and proposes
//               no more
//
// Where no block computes in fp16 the policy only names blocks. Stateless and thread-safe; Decide
// owns the state.
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
