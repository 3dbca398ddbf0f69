// A policy that draws new shares at random every few rounds, which must not affect reproducible
// mode. Pure: depends on seed and round only.
#pragma once

#include <cstdint>
#include <string_view>

#include "coordinator/decide/policy.h"

namespace cox::bench {

class RandomShares final : public Policy {
 public:
  RandomShares(std::uint64_t seed, std::uint64_t every_rounds)
      : seed_(seed), every_rounds_(every_rounds) {}
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "random_shares"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;

 private:
  std::uint64_t seed_;
  std::uint64_t every_rounds_;
};

}  // namespace cox::bench
