// Plan: what every rank does from an agreed future round on. The coordinator publishes numbered
// plans, one in flight at a time; a plan becomes active on all ranks with the round after the one
// in which the step's reduction showed that all of them hold it (MIN over ranks), not before
// `earliest_round`. Knobs that change numbers (precision, cadence, scaler) are global; knobs that
// do not (memory actions, shares of whole samples) may differ per rank. Plain value; pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/loss_scale.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox {

// Names a plan for good: numbers start again only with a new incarnation of the job.
struct PlanId {
  std::uint32_t incarnation = 0;
  std::uint64_t number = 0;  // 0 = the plan that every rank starts with
  friend constexpr auto operator<=>(const PlanId&, const PlanId&) = default;
};

// Go back to the newest snapshot taken before `before_round`. A ticket is executed once: the
// trainer remembers the largest it has done.
struct RollbackOrder {
  std::uint32_t ticket = 0;  // 0 = none was ever ordered
  RoundId before_round{};
  friend bool operator==(const RollbackOrder&, const RollbackOrder&) = default;
};

struct Plan {
  PlanId id{};
  RoundId earliest_round{};
  std::optional<RoundId> activated_round;  // known once it happened; not part of the mask

  std::vector<Precision> precision;                // one per block
  std::vector<std::vector<MemoryAction>> classes;  // classes[c][block]; at least one class
  std::vector<ClassId> rank_class;                 // one per rank; empty = all in class 0
  std::vector<std::uint32_t> shares;               // relative, one per rank; empty = even
  std::uint64_t step_samples = 0;   // of all ranks in a step; 0 = the job's global batch
  std::uint32_t cadence_steps = 1;  // local steps between averagings, >= 1
  ScalerRules scaler{};
  RoundId hold_until{};  // no knob moves before this round
  RollbackOrder rollback{};

  friend bool operator==(const Plan&, const Plan&) = default;
};

// The plan that every rank derives from the job alone: number 0, fp32, keep, even shares.
Plan initial_plan(const JobFacts& job);

// The action of one block on one rank. Requires: a valid plan.
MemoryAction action_of(const Plan& plan, RankId rank, BlockId block);

// Whether two plans tell the ranks the same thing (ids and rounds aside).
bool same_effect(const Plan& a, const Plan& b);

// invalid_argument naming the first field that does not fit the job or is out of range.
Status validate(const Plan& plan, const JobFacts& job);

// One line per difference in effect, for logs, the status page and `cox replay`; empty when equal.
std::vector<std::string> diff(const Plan& before, const Plan& after);

// Several lines for people: id, rounds, precision mix, classes, shares, cadence, hold, rollback.
std::string text(const Plan& plan);

}  // namespace cox
