// Stragglers: tells people which ranks are slower than they should be, in which phase, since when
// and how sure that is; whether it is a whole host, or the whole job; and which ranks pause again
// and again. The estimates (core/slowness.h) detect it; this policy turns what changed in them into
// findings. No knob belongs to it.
#pragma once

#include "coordinator/core/policy.h"

namespace cox {

class Stragglers final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::stragglers; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
