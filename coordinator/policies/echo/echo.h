// Echo: puts the setting `echo.value` into the plan.
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

class EchoPolicy final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::echo; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    PolicyOutput output;
    output.state = std::move(state);
    const std::uint64_t wanted = input.config.echo.value;
    if (wanted == input.plan.echo) return output;
    output.proposals.push_back(
        {set(&Plan::echo, wanted), reason_of(ReasonCode::echo_set, concat("echo is ", wanted))});
    return output;
  }
};

}  // namespace cox
