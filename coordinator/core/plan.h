// Plan: the behaviour of every rank from an agreed future round on. The coordinator publishes
// numbered plans, one in flight at a time. The step's reduction (MIN over ranks) shows when all
// ranks hold a plan. From the next round on, but not before `earliest_round`, the plan is in force
// on all ranks. Fields that change numerics (precision, scaler) are the same on all ranks; other
// fields (memory actions, shares of whole samples) may differ per rank. A new field is a member
// here and a row in plan_fields.h. Plain value; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/fields.h"
#include "coordinator/core/job.h"
#include "coordinator/core/loss_scale.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox {

// PlanId names a plan for good: numbers start again only with a new incarnation of the job.
struct PlanId {
  std::uint32_t incarnation = 0;
  std::uint64_t number = 0;  // 0 = the plan that every rank starts with
  friend constexpr auto operator<=>(const PlanId&, const PlanId&) = default;
};

// RollbackOrder tells the trainer to go back to the newest snapshot taken before `before_round`.
// The trainer remembers the largest ticket that it has executed, so each ticket is executed once.
struct RollbackOrder {
  std::uint32_t ticket = 0;  // 0 = no rollback yet
  RoundId before_round{};
  static auto fields(auto& self) {
    return message("RollbackOrder", field(1, "ticket", self.ticket),
                   field(2, "before_round", self.before_round));
  }
  friend bool operator==(const RollbackOrder&, const RollbackOrder&) = default;
};

using ActionProfile = std::vector<MemoryAction>;  // one action per block

struct Plan {
  PlanId id{};
  RoundId earliest_round{};
  std::optional<RoundId> activated_round;  // set once the plan is active; not part of masks

  std::vector<Precision> precision;     // one per block
  std::vector<ActionProfile> profiles;  // 1 .. kMaxProfiles
  std::vector<ProfileId> rank_profile;  // one per rank; empty = all ranks have profile 0
  std::vector<std::uint32_t> shares;    // relative, one per rank; empty = even
  ScalerRules scaler{};
  RoundId hold_until{};  // no knob moves before this round
  RollbackOrder rollback{};
  std::uint64_t step_samples = 0;  // of all ranks in a step; 0 = the job's global batch

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Limits the profiles of a plan: the boards that pass plans on within a node have room for as many.
inline constexpr std::size_t kMaxProfiles = 1024;

// Returns the plan that every rank derives from the job alone: number 0, fp32, keep, even shares.
Plan initial_plan(const JobFacts& job);

// Returns the index of the rank's profile. REQUIRES: `plan` is valid and `rank` is in its world.
ProfileId profile_of(const Plan& plan, RankId rank);
// Returns the action of a block on a rank. REQUIRES: `plan` is valid, `rank` is in its world, and
// `block` is one of the job's blocks.
MemoryAction action_of(const Plan& plan, RankId rank, BlockId block);

// Returns whether every rank has the same memory actions under both plans. Plans with different
// profiles can have the same actions. REQUIRES: both plans are valid for the same job.
bool same_actions(const Plan& a, const Plan& b);

// The functions below follow from the table of fields; plan_fields.cc defines them.

// Returns whether both plans have the same effect on the ranks, apart from ids and rounds.
// REQUIRES: both plans are valid for the same job.
bool same_effect(const Plan& a, const Plan& b);

// Returns invalid_argument naming the first field that does not fit the job or is out of range.
Status validate(const Plan& plan, const JobFacts& job);

// Returns one line per difference in effect, for logs, the status page and `cox replay`; none for
// plans with the same effect. REQUIRES: both plans are valid for the same job.
std::vector<std::string> diff(const Plan& before, const Plan& after);

// Returns several lines for people: the id, the rounds, and one line per field.
std::string text(const Plan& plan);

}  // namespace cox
