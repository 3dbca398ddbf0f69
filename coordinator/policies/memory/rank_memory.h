// The model behind policy `memory`: what a rank is believed to take (predictions, corrected by
// measured peaks), and which point of its front it should be at within its budget (budget.h).
// Called by the policy once a round. Values and pure functions.
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
// Recompute that failed at one level rests at all of them and in full: what made it fail is an
// operator of the block that cannot be run again, and each level would fail in its turn.
struct RestingAction {
  std::uint64_t block = 0;
  MemoryAction action = MemoryAction::keep;  // as kind_of()
  RoundId until{};

  static auto fields(auto& self) {
    return message("RestingAction", field(1, "block", self.block), field(2, "action", self.action),
                   field(3, "until", self.until));
  }
};

// RankMemoryState is what the policy keeps of one rank between rounds.
struct RankMemoryState {
  std::int64_t correction_bytes = 0;         // measured minus predicted peak, smoothed
  std::uint32_t correction_rounds = 0;       // until it may go down
  std::optional<std::uint64_t> plan_seen{};  // number of the plan in its last report
  std::int64_t measured_bytes = 0;           // its newest peak; 0 = none yet
  std::int64_t limit_bytes = 0;              // 0 = unknown
  std::int64_t ceiling_bytes = 0;  // predicted for a plan that broke the budget; 0 = none did
  RoundId ceiling_until{};         // the round in which that is forgotten
  bool straggles = false;          // by the newest estimates
  bool has_slow_plan = false;      // it chose its plan while it straggled
  std::uint64_t samples = 0;       // of a step, in its newest report; 0 = none yet
  std::uint32_t room_rounds = 0;   // in a row in which a lighter plan was worth it

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

// MemoryState is what policy `memory` remembers between rounds.
struct MemoryState {
  static constexpr std::uint32_t kVersion = 5;
  std::uint64_t digest = 0;              // of fronts and budgets; with others it starts anew
  std::vector<RankMemoryState> ranks{};  // one per rank
  std::vector<RestingAction> resting{};
  bool retries = false;       // an action has rested and is tried again with the next plan
  bool told_rules = false;    // the user's rules were reported
  ReasonCode told_code{};     // the last reason for which nothing changed ...
  std::uint64_t told_plan{};  // ... and the number of the plan that stayed

  static auto fields(auto& self) {
    return message("MemoryState", field(1, "digest", self.digest), field(2, "ranks", self.ranks),
                   field(3, "resting", self.resting), field(4, "retries", self.retries),
                   field(5, "told_rules", self.told_rules), field(6, "told_code", self.told_code),
                   field(7, "told_plan", self.told_plan));
  }
  // Returns whether the numbers can have come from the functions below.
  bool is_sane() const;
};

// Returns the kept state, or a fresh one where the kept one belongs to another world, other fronts
// or other budgets, or has numbers that are out of range.
MemoryState take_memory_state(PolicyState kept, const JobFacts& job, const MemoryConfig& config);

// The part of the step that a lighter plan must save.
inline constexpr double kWorthIt = 0.01;

// Move says how a rank moves on its front. Bands keep it from moving back and forth:
//
//   heavier   at once, where the plan in force is above the budget as predicted and corrected, was
//             measured above it, or has an action that is not to be used
//   lighter   after 16 rounds in a row in which the lighter point fits 98 % of the budget and saves
//             at least kWorthIt of the step; at once on a straggler (the whole budget, from 0.2 %
//             on), and where an action has rested and is tried again
//   never     a point of at least the predicted bytes of one that broke the budget, for 1000 rounds
enum class Move : std::uint8_t { stay, over_budget, breach, rules, lighter };

struct Choice {
  Move move = Move::stay;
  std::size_t point = 0;          // to go to, unless it stays
  bool feasible = true;           // false = no point fits; `point` has the least bytes
  MemoryCost cost;                // of that point, predicted at the rank's share, if it moves
  std::uint32_t room_rounds = 0;  // to remember
  double worth = 0;               // part of the step that a lighter plan would save
};

// RankView is one rank in one round. Predictions are for `samples`: the most that a step of this
// rank may have under the plans in question, so that they hold before, while and after a share
// changes.
struct RankView {
  const MemoryModel* model = nullptr;
  const MemoryFront* front = nullptr;  // the usable part of the model's, as measured
  std::uint64_t samples = 0;           // of a step
  ProfileId profile{};                 // in the plan in force
  std::optional<MemoryCost> now;       // of that profile, predicted
  std::int64_t keep_bytes = 0;         // predicted peak of the fastest point
  std::int64_t least_bytes = 0;        // predicted peak of the point with the least bytes
  bool now_allowed = true;             // every block may have the action it has
  RankBudget budget;
  std::int64_t correction_bytes = 0;
  std::int64_t ceiling_bytes = 0;  // predicted bytes must be below; 0 = none
  bool breached = false;           // it was just measured above the budget, or ran out
  bool ran_out = false;            // of memory, under the plan that it has
  bool ends_slow_plan = false;     // it is not slow any more, and its plan was for when it was
  Choice choice;
};

// ActionEvent is an action that failed, or that has rested.
struct ActionEvent {
  RankId rank{-1};
  std::size_t block = 0;
  MemoryAction action = MemoryAction::keep;  // of a failure with its level
  std::string what;                          // of a failure
};

// MemoryRound is the policy's reading of one round: the new state and a view and choice per rank.
// memory.cc turns it into proposals and findings. Movable but not copyable, because the views point
// into `made`.
struct MemoryRound {
  MemoryRound() = default;
  MemoryRound(MemoryRound&&) = default;
  MemoryRound& operator=(MemoryRound&&) = default;

  MemoryState state;
  std::vector<ActionSet> allowed;  // per block
  // Samples of a step of each rank under the plan; empty where peaks do not depend on them.
  std::vector<std::uint64_t> samples;
  // The most samples of a step that each rank can have within its budget under some point of its
  // front; kMaxStepSamples where nothing limits it. A rank whose budget cannot be met with a single
  // sample keeps those that it has. Empty where no rank is limited, and for a draft.
  std::vector<std::uint64_t> most_samples;
  std::vector<MemoryFront> made;    // fronts that differ from their model's
  std::vector<RankView> ranks;      // one per rank
  std::vector<ActionEvent> failed;  // new ones
  std::vector<ActionEvent> rested;
  // The first rank that moves, whose budget cannot be met, and whose limit is asked for and
  // unknown.
  std::optional<std::size_t> moves, infeasible, needs_limit;
};

// Returns whether the facts have the shape of the job. Their values were validated already. Linear
// in the number of points.
bool facts_fit(const JobFacts& job);

// Learns what the reports of the round measured (peaks, limits, samples, failures), and chooses a
// point of its front for every rank. A round without reports teaches nothing. From each report that
// covers only rounds under the newest plan it learns
//   correction   measured minus predicted peak: up at once, down when rounds stay below it
//   ceiling      the predicted peak of a plan that was measured above the budget
// REQUIRES: facts_fit(input.job). `input` outlives the result.
MemoryRound look_at_round(const PolicyInput& input, MemoryState state);

// Chooses points for a plan that Decide is drafting. `drafted.plan` is the draft; `newest` is the
// plan that the ranks follow until the draft is applied. Chooses heavier points for the ranks whose
// drafted actions do not fit their samples under either plan; learns nothing, and moves no rank to
// a lighter point. REQUIRES: facts_fit(drafted.job); both plans are valid.
MemoryRound look_at_draft(const PolicyInput& drafted, const Plan& newest, MemoryState state);

// Returns for each rank the time of its work for a sample under the plan that it would settle on
// with the shares of `drafted.plan`, over that under the plan that it has there: 1 where no plan
// fits, and where times are not known. Learns nothing. REQUIRES: as look_at_draft().
std::vector<double> settled_work_factors(const PolicyInput& drafted, MemoryState state);

// Returns the budget of a rank by what is remembered of it. `keep_bytes` is its predicted peak with
// all blocks kept.
RankBudget budget_of_rank(const MemoryConfig& config, const RankMemoryState& rank, RankId id,
                          std::int64_t keep_bytes);

}  // namespace cox
