#include "coordinator/core/plan.h"

#include <algorithm>
#include <cassert>

namespace cox {

Plan initial_plan(const JobFacts& job) {
  Plan plan;
  plan.id.incarnation = job.incarnation;
  plan.precision.assign(job.blocks.size(), Precision::fp32);
  plan.profiles.emplace_back(job.blocks.size(), MemoryAction::keep);
  return plan;
}

ProfileId profile_of(const Plan& plan, RankId rank) {
  if (plan.rank_profile.empty()) return ProfileId(0);
  const auto index = static_cast<std::size_t>(rank.value());
  assert(index < plan.rank_profile.size());
  return plan.rank_profile[index];
}

MemoryAction action_of(const Plan& plan, RankId rank, BlockId block) {
  const ActionProfile& actions = plan.profiles[profile_of(plan, rank).value()];
  assert(block.value() < actions.size());
  return actions[block.value()];
}

bool same_actions(const Plan& a, const Plan& b) {
  if (a.profiles == b.profiles && a.rank_profile == b.rank_profile) return true;
  const std::size_t ranks =
      std::max({a.rank_profile.size(), b.rank_profile.size(), std::size_t{1}});
  // Neighbours mostly move together, so few pairs of profiles are compared.
  ProfileId last_a{};
  ProfileId last_b{};
  for (std::size_t r = 0; r < ranks; ++r) {
    const RankId rank(static_cast<std::int32_t>(r));
    const ProfileId of_a = profile_of(a, rank);
    const ProfileId of_b = profile_of(b, rank);
    if (r > 0 && of_a == last_a && of_b == last_b) continue;
    if (a.profiles[of_a.value()] != b.profiles[of_b.value()]) return false;
    last_a = of_a;
    last_b = of_b;
  }
  return true;
}

}  // namespace cox
