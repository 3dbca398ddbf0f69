// The model behind policy `memory`: the bytes that a rank is believed to need (predictions,
// corrected by measured peaks), and the point of its front that it should use within its budget
// (budget.h). The policy calls this code once a round. Values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/settings/memory.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/units.h"
#include "coordinator/decide/policy.h"
#include "coordinator/policies/memory/budget.h"

namespace cox {

// RestingAction is a kind of action that failed on a block and is not used there before a round.
// Recompute that failed at one level rests at all levels and in full: the block has an operator
// that cannot be run again, so every level would fail.
struct RestingAction {
  std::uint64_t block = 0;
  MemoryAction action = MemoryAction::keep;  // as kind_of()
  RoundId until{};

  static auto fields(auto& self) {
    return message("RestingAction", field(1, "block", self.block), field(2, "action", self.action),
                   field(3, "until", self.until));
  }
};

// RankMemoryState is the state that the policy keeps for one rank between rounds.
struct RankMemoryState {
  std::int64_t correction_bytes = 0;         // measured minus predicted peak, smoothed
  std::uint32_t correction_rounds = 0;       // left until the correction may go down
  std::optional<std::uint64_t> plan_seen{};  // number of the plan in the rank's last report
  std::int64_t measured_bytes = 0;           // the rank's newest peak; 0 = none yet
  std::int64_t limit_bytes = 0;              // 0 = unknown
  std::int64_t ceiling_bytes = 0;  // lowest predicted peak that broke the budget; 0 = none
  RoundId ceiling_until{};         // the round in which the ceiling is forgotten
  bool straggles = false;          // by the newest estimates
  bool has_slow_plan = false;      // the rank chose its plan while slow
  std::uint64_t samples = 0;       // of a step, in the rank's newest report; 0 = none yet
  std::uint32_t room_rounds = 0;   // in a row in which a lighter plan was worth while

  static auto fields(auto& self) {
    return message(
        "RankMemoryState", field(1, "correction_bytes", self.correction_bytes),
        field(2, "correction_rounds", self.correction_rounds),
        field(3, "plan_seen", self.plan_seen), field(4, "measured_bytes", self.measured_bytes),
        field(5, "limit_bytes", self.limit_bytes), field(6, "ceiling_bytes", self.ceiling_bytes),
        field(7, "ceiling_until", self.ceiling_until), field(8, "straggles", self.straggles),
        field(9, "has_slow_plan", self.has_slow_plan), field(10, "samples", self.samples),
        field(11, "room_rounds", self.room_rounds));
  }
};

// MemoryState is the state that policy `memory` keeps between rounds.
struct MemoryState {
  static constexpr std::uint32_t kVersion = 5;
  std::uint64_t digest = 0;  // of fronts and budgets; a different digest resets the state
  std::vector<RankMemoryState> ranks{};  // one per rank
  std::vector<RestingAction> resting{};
  bool retries = false;       // a rested action is tried again with the next plan
  bool told_rules = false;    // the user's rules were reported
  ReasonCode told_code{};     // the last reason for no change ...
  std::uint64_t told_plan{};  // ... and the number of the plan in force then

  static auto fields(auto& self) {
    return message("MemoryState", field(1, "digest", self.digest), field(2, "ranks", self.ranks),
                   field(3, "resting", self.resting), field(4, "retries", self.retries),
                   field(5, "told_rules", self.told_rules), field(6, "told_code", self.told_code),
                   field(7, "told_plan", self.told_plan));
  }
  // Returns whether the numbers can have come from the functions below.
  bool is_sane() const;
};

// Returns the kept state. Returns a fresh one if the kept state belongs to another world, other
// fronts or other budgets, or has numbers out of range.
MemoryState take_memory_state(PolicyState kept, const JobFacts& job, const MemoryConfig& config);

// The part of the step that a lighter plan must save.
inline constexpr double kWorthIt = 0.01;

// Move is the reason for which a rank moves on its front. Three rules keep the rank from
// oscillating:
//
//   heavier   at once, if the plan in force is above the budget as predicted and corrected, was
//             measured above the budget, or has a forbidden action
//   lighter   after 16 rounds in a row in which the lighter point fits 98 % of the budget and saves
//             at least kWorthIt of the step. At once on a straggler (the whole budget, from 0.2 %
//             on), and if a rested action is tried again
//   never     to a point with at least the predicted bytes of one that broke the budget, for 1000
//             rounds
enum class Move : std::uint8_t { stay, over_budget, breach, rules, lighter };

struct Choice {
  Move move = Move::stay;
  std::size_t point = 0;          // the new point, unless `move` is stay
  bool feasible = true;           // false = no point fits; `point` has the least bytes
  MemoryCost cost;                // of `point` at the rank's share, predicted; set if it moves
  std::uint32_t room_rounds = 0;  // new count, to be remembered
  double worth = 0;               // ratio of the step that a lighter plan would save
};

// RankView is one rank in one round. Predictions are for `samples`: the most that a step of this
// rank may have under the plans in question. Predictions therefore hold before, during and after a
// change of shares.
struct RankView {
  const MemoryModel* model = nullptr;
  const MemoryFront* front = nullptr;  // the usable part of the model's, as measured
  std::uint64_t samples = 0;           // of a step
  ProfileId profile{};                 // in the plan in force
  std::optional<MemoryCost> now;       // cost of `profile`, predicted
  std::int64_t keep_bytes = 0;         // predicted peak of the fastest point
  std::int64_t least_bytes = 0;        // predicted peak of the point with the least bytes
  bool now_allowed = true;             // every block may have its present action
  RankBudget budget;
  std::int64_t correction_bytes = 0;
  std::int64_t ceiling_bytes = 0;  // predicted bytes must be below; 0 = none
  bool breached = false;           // this report's peak was above the budget, or memory ran out
  bool ran_out = false;            // memory ran out under the present plan
  bool ends_slow_plan = false;     // no longer slow, but its plan was chosen while it was
  Choice choice;
};

// ActionEvent is an action that failed, or a kind of action that has rested.
struct ActionEvent {
  RankId rank{-1};
  std::size_t block = 0;
  MemoryAction action = MemoryAction::keep;  // with its level, for a failure
  std::string what;                          // message of a failure
};

// MemoryRound is the policy's reading of one round: the new state and a view and choice per rank.
// memory.cc turns a MemoryRound into proposals and findings. Movable but not copyable, because the
// views point into `made`.
struct MemoryRound {
  MemoryRound() = default;
  MemoryRound(MemoryRound&&) = default;
  MemoryRound& operator=(MemoryRound&&) = default;

  MemoryState state;
  std::vector<ActionSet> allowed;  // per block
  // Samples of a step of each rank under the plan. Empty if peaks do not depend on samples.
  std::vector<std::uint64_t> samples;
  // The most samples of a step that each rank can have within its budget under some point of its
  // front. kMaxStepSamples means unlimited. A rank whose budget is too small for a single sample
  // keeps its present samples. Empty if no rank is limited, and for a draft.
  std::vector<std::uint64_t> most_samples;
  std::vector<MemoryFront> made;    // fronts that differ from their model's
  std::vector<RankView> ranks;      // one per rank
  std::vector<ActionEvent> failed;  // new ones
  std::vector<ActionEvent> rested;
  // The first rank that moves, the first whose budget cannot be met, and the first whose limit is
  // needed and unknown.
  std::optional<std::size_t> moves, infeasible, needs_limit;
};

// Returns whether the facts have the shape of the job. Their values were validated already. Linear
// in the number of points.
bool facts_fit(const JobFacts& job);

// Learns from the reports of the round (peaks, limits, samples, failures), and chooses a point of
// its front for every rank. A round without reports teaches nothing. From each report that covers
// only rounds under the newest plan the function learns
//   correction   measured minus predicted peak: up at once, down when rounds stay below it
//   ceiling      the predicted peak of a plan that was measured above the budget
// REQUIRES: facts_fit(input.job). `input` outlives the result.
MemoryRound look_at_round(const PolicyInput& input, MemoryState state);

// Chooses points for a plan that Decide is drafting. `drafted.plan` is the draft; `newest` is the
// plan that the ranks follow until the draft is applied. Chooses heavier points for the ranks whose
// drafted actions do not fit their samples under either plan. Learns nothing, and moves no rank to
// a lighter point. REQUIRES: facts_fit(drafted.job); both plans are valid.
MemoryRound look_at_draft(const PolicyInput& drafted, const Plan& newest, MemoryState state);

// Returns for each rank the ratio of two times of its work for a sample: under the plan that the
// rank would settle on with the shares of `drafted.plan`, and under the rank's plan in
// `drafted.plan`. Returns 1 if no plan fits or times are not known. Learns nothing. REQUIRES: as
// look_at_draft().
std::vector<double> settled_work_factors(const PolicyInput& drafted, MemoryState state);

// Returns the budget of a rank by its remembered state. `keep_bytes` is the rank's predicted peak
// with all blocks kept.
RankBudget budget_of_rank(const MemoryConfig& config, const RankMemoryState& rank, RankId id,
                          std::int64_t keep_bytes);

}  // namespace cox
