#include "coordinator/core/plan.h"

#include <algorithm>
#include <cassert>

#include "coordinator/core/plan_fields.h"

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

bool same_effect(const Plan& a, const Plan& b) {
  bool same = true;
  for_each_plan_field([&](const auto& field) {
    if (!same) return;
    same =
        field.rules.same != nullptr ? field.rules.same(a, b) : a.*field.member == b.*field.member;
  });
  return same;
}

Status validate(const Plan& plan, const JobFacts& job) {
  if (plan.id.incarnation != job.incarnation) {
    return invalid_argument("plan: expected incarnation ", job.incarnation, ", found ",
                            plan.id.incarnation);
  }
  Status status;
  for_each_plan_field([&](const auto& field) {
    if (!status.ok()) return;
    if (!is_capable(field, plan.*field.member, job.capabilities)) {
      status = invalid_argument("plan: ", field.name, " cannot be applied by this job");
    } else if (field.rules.check != nullptr) {
      status = field.rules.check(plan, job);
    }
  });
  return status;
}

std::vector<std::string> diff(const Plan& before, const Plan& after) {
  std::vector<std::string> lines;
  for_each_plan_field([&](const auto& field) {
    if (field.rules.diff != nullptr) return field.rules.diff(before, after, lines);
    if (before.*field.member == after.*field.member) return;
    lines.push_back(
        concat(field.name, ": ", field.rules.text(before), " -> ", field.rules.text(after)));
  });
  return lines;
}

std::string text(const Plan& plan) {
  std::string out =
      concat("plan ", plan.id.incarnation, ".", plan.id.number, ", from round ",
             plan.earliest_round, " on, ",
             plan.activated_round ? concat("active since round ", *plan.activated_round)
                                  : "not seen active yet",
             "\n");
  for_each_plan_field(
      [&](const auto& field) { out += concat(field.name, ": ", field.rules.text(plan), "\n"); });
  return out;
}

}  // namespace cox
