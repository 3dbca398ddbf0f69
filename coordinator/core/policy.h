// The seam for policies. A policy is a pure function: from what is known about a round and the
// state it kept, to proposals with reasons and its next state. It never writes the plan, reads no
// clock and draws no randomness, so the journal can run it again. Decide owns the states and calls
// policies one after another on the coordinator's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/estimates.h"
#include "coordinator/core/history.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/policy_state.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/summary.h"

namespace cox {

struct SetPrecision {
  BlockId block{};
  Precision precision = Precision::fp32;
  std::uint16_t blocks = 1;  // this one and those after it
};
struct SetActions {  // replaces all profiles, and which rank has which
  std::vector<ActionProfile> profiles;
  std::vector<ProfileId> rank_profile;
};
struct SetShares {
  std::vector<std::uint32_t> shares;  // empty = even
};
struct SetBatch {
  std::uint64_t step_samples = 0;  // 0 = the job's global batch
};
struct SetScaler {
  ScalerRules rules{};
};
struct HoldUntil {
  RoundId round{};
};
struct RollBack {
  RoundId before_round{};
};
using PlanChange =
    std::variant<SetPrecision, SetActions, SetShares, SetBatch, SetScaler, HoldUntil, RollBack>;

// One change and why. `reason.outcome` is set by Decide.
struct Proposal {
  PlanChange change;
  Reason reason;
};

// What a policy may look at. References are valid during the call only.
struct PolicyInput {
  const JobFacts& job;
  const Config& config;
  const Plan& plan;  // the newest published one
  const StepSignals& signals;
  const StepSummary& summary;
  const Estimates& estimates;  // after this round; before the first one, what was restored
  const History& history;      // without this round
  // The most samples of a step that each rank may have, by the policies that were asked before in
  // this round; empty = nothing limits them.
  std::span<const std::uint64_t> most_samples{};
};

struct PolicyOutput {
  std::vector<Proposal> proposals;
  std::vector<Reason> findings;  // what it saw without proposing anything
  PolicyState state;
  // The most samples of a step that each rank may have, told to the policies that are asked later;
  // empty = nothing limits them. Counts where the policy is on.
  std::vector<std::uint64_t> most_samples{};
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual PolicyKind kind() const = 0;
  virtual std::string_view name() const = 0;  // stable; the key of its saved state and its mode
  // REQUIRES: `state` is fresh or was returned by an earlier call of the same policy, perhaps in an
  // earlier run of the job: a state of another world size counts as fresh. Linear in the number of
  // ranks.
  virtual PolicyOutput propose(const PolicyInput& input, PolicyState state) const = 0;
  // Once, on rank 0, before the first round: what the first step should already run under. There
  // are no signals yet, and the state is fresh or restored.
  virtual PolicyOutput at_start(const PolicyInput&, PolicyState state) const {
    return {{}, {}, std::move(state)};
  }
  // Asked after all policies have proposed, in a round whose draft gives ranks other numbers of
  // samples than the newest plan: proposes what else must change in the same plan, so that no share
  // is granted without the actions that hold it. Findings are ignored. Only asked where the policy
  // is on; custom policies are not.
  virtual PolicyOutput fit(const PolicyInput&, const Plan& draft, PolicyState state) const {
    static_cast<void>(draft);
    return {{}, {}, std::move(state)};
  }
};

// In the order in which Decide asks them.
using PolicySet = std::vector<std::shared_ptr<const Policy>>;

}  // namespace cox
