// Proposes another plan in every second round: random shares (also zeros), precisions, memory
// actions, batches, short holds and rollbacks. A pure function of seed and round, so its journal
// replays.
#pragma once

#include <cstdint>

#include "coordinator/decide/policy.h"

namespace cox::test {

class RestlessPolicy final : public Policy {
 public:
  explicit RestlessPolicy(std::uint64_t seed) : seed_(seed) {}
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "restless"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;

 private:
  std::uint64_t seed_;
};

}  // namespace cox::test
