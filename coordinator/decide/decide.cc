#include "coordinator/decide/decide.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "coordinator/core/fields.h"
#include "coordinator/core/share_units.h"
#include "coordinator/core/text.h"
#include "coordinator/decide/plan_change.h"

namespace cox {
namespace {

constexpr std::string_view kOwnState = "decide";
constexpr std::uint32_t kMissingRounds = 3;  // a single late report is ordinary

Reason own_reason(ReasonCode code, RoundId round, std::string text) {
  Reason reason = reason_of(code, std::move(text), Outcome::reported);
  reason.round = round;
  return reason;
}

// The state named "decide": the facts that were reported already. A reason is given when a fact
// becomes true, not again in every round.
struct SaidState {
  static constexpr std::uint32_t kVersion = 1;
  bool nobody_applies = false;
  bool override_refused = false;
  std::uint32_t missing_rounds = 0;     // in a row
  std::vector<std::uint64_t> withheld;  // one digest per policy; 0 = nothing was withheld
  static auto fields(auto& self) {
    return message("DecideState", field(1, "nobody_applies", self.nobody_applies),
                   field(2, "override_refused", self.override_refused),
                   field(3, "missing_rounds", self.missing_rounds),
                   field(4, "withheld", self.withheld));
  }
};

SaidState said_before(PolicyState& state, std::size_t policies) {
  auto said = state.take_or_fresh<SaidState>();
  if (said.withheld.size() == policies) return said;
  SaidState fresh;
  fresh.withheld.resize(policies);
  return fresh;
}

// Returns whether `now` is true and was not before. Sets `said` to `now`.
bool is_news(bool& said, bool now) {
  const bool before = std::exchange(said, now);
  return now && !before;
}

std::uint64_t digest_of(std::span<const Reason> reasons) {
  std::uint64_t hash = 0;
  for (const Reason& reason : reasons) {
    const std::uint64_t what = (static_cast<std::uint64_t>(reason.code) << 8 |
                                static_cast<std::uint64_t>(reason.outcome)) +
                               1;
    hash = hash * 1000003u + what;
  }
  return hash;
}

// A policy that is not off. Turns are in the order in which policies are asked.
struct Turn {
  const Policy* policy = nullptr;
  PolicyMode mode = PolicyMode::on;
  std::size_t place = 0;         // index among all policies
  PolicyState* state = nullptr;  // in the control state
};

// Returns the turns, guard first. REQUIRES: no state is added to `kept` while the turns are in use.
std::vector<Turn> turns_of(const PolicySet& policies, const Config& config, ControlState& kept) {
  std::vector<Turn> turns;
  turns.reserve(policies.size());
  std::size_t place = 0;
  for (const bool is_guard : {true, false}) {
    for (const auto& policy : policies) {
      if ((policy->kind() == PolicyKind::guard) != is_guard) continue;
      const PolicyMode mode = mode_of(config, policy->name());
      if (mode != PolicyMode::off) turns.push_back({policy.get(), mode, place});
      ++place;
    }
  }
  const auto find_states = [&] {
    for (Turn& turn : turns) turn.state = &state_of(kept, turn.policy->name());
  };
  const std::size_t states = kept.policies.size();
  find_states();
  if (kept.policies.size() != states) find_states();  // adding a state moves the others
  return turns;
}

Outcome withhold(Reason& reason, ReasonCode code, const std::string& note) {
  reason.code = code;
  reason.text += reason.text.empty() ? concat("held back: ", note) : concat("; held back: ", note);
  return Outcome::vetoed;
}

// A proposal of a policy that was asked to fit the draft.
struct FitProposal {
  Turn turn;
  Proposal proposal;
};

bool is_for_time(const Proposal& proposal) {
  return proposal.motive == Motive::gain && proposal.reason.forecast.promises_time();
}

AppliedChange applied_change(const Turn& turn, const Proposal& proposal) {
  AppliedChange change;
  change.policy = turn.policy->name();
  change.kind = turn.policy->kind();
  change.knob = proposal.change.knob;
  change.first_block = proposal.change.first_block.value();
  change.blocks = static_cast<std::uint16_t>(proposal.change.to.precision.size());
  change.promised_ratio = proposal.reason.forecast.step_ratio;
  change.is_for_time = is_for_time(proposal);
  return change;
}

// The plan of a round in the making. Applies or withholds one proposal after another, and keeps the
// reason of each.
class Draft {
 public:
  // References must outlive the draft.
  Draft(const JobFacts& job, const Config& config, const Plan& newest, const StepSummary& summary,
        SaidState& said, Effects& effects)
      : job_(job),
        config_(config),
        newest_(newest),
        said_(said),
        effects_(effects),
        round_(summary.round),
        in_flight_(summary.plan_applied_max < newest.id.number),
        nobody_applies_(summary.reporting > 0 && summary.watching == summary.reporting),
        plan_(newest) {}

  void report(Reason reason) { reasons_.push_back(std::move(reason)); }
  bool nobody_applies() const { return nobody_applies_; }

  // Applies or withholds the proposals of a policy. `withheld` has reasons that are withheld
  // already (a failure of the policy). Reports withheld reasons if they differ from those of the
  // round before.
  void take(const Turn& turn, std::vector<Proposal> proposals, std::vector<Reason> withheld) {
    for (Proposal& proposal : proposals) {
      proposal.reason.policy = turn.policy->kind();
      Rest* const rest = rest_of(turn, proposal);
      if (rest != nullptr && std::exchange(rest->told, true)) continue;
      Reason reason = rest == nullptr ? judged(std::move(proposal), turn)
                                      : resting(std::move(proposal.reason), *rest);
      const bool is_done = reason.outcome == Outcome::changed || reason.outcome == Outcome::clamped;
      (is_done ? reasons_ : withheld).push_back(std::move(reason));
    }
    const std::uint64_t now = digest_of(withheld);
    if (std::exchange(said_.withheld[turn.place], now) == now) return;
    for (Reason& reason : withheld) reasons_.push_back(std::move(reason));
  }

  const Plan& plan() const { return plan_; }

  // Applies or withholds the proposals that fit the draft.
  void take_fit(std::vector<FitProposal> proposals) {
    for (FitProposal& fit : proposals) report(judged(std::move(fit.proposal), fit.turn));
  }

  // Returns whether nothing changes in this round although something could.
  bool is_at_rest() const {
    return !in_flight_ && !nobody_applies_ && round_ >= plan_.hold_until &&
           same_effect(plan_, newest_);
  }

  // Restores the values from before the condemned changes. Returns why the changes must stay, or an
  // empty text. REQUIRES: is_at_rest().
  std::string take_back(const Condemned& condemned, std::span<const std::uint64_t> most_samples) {
    return cox::take_back(condemned, job_, config_.force, most_samples, plan_);
  }
  void drop_changes() {
    plan_ = newest_;
    changes_.clear();
  }
  void note_changes(std::vector<AppliedChange> changes) { changes_ = std::move(changes); }
  std::vector<AppliedChange> take_changes() { return std::move(changes_); }

  // The user's overrides win over every policy.
  void apply_overrides() {
    std::optional<Reason> reason;
    if (!in_flight_ && !nobody_applies_) reason = apply_forced(plan_, config_.force, job_);
    const bool is_refused = reason && reason->outcome == Outcome::vetoed;
    const bool is_new_refusal = is_news(said_.override_refused, is_refused);
    if (!reason || (is_refused && !is_new_refusal)) return;
    reason->round = round_;
    reasons_.push_back(std::move(*reason));
    if (!is_refused) changes_.push_back({.policy = std::string(kOwnState), .knob = Knob::shares});
  }

  std::vector<Reason> take_reasons() { return std::move(reasons_); }

  // Returns the next plan, if the draft differs in effect from the newest one. Ends the draft.
  std::optional<Plan> finish() && {
    if (in_flight_ || nobody_applies_ || same_effect(plan_, newest_)) return std::nullopt;
    plan_.id = {job_.incarnation, newest_.id.number + 1};
    plan_.earliest_round = RoundId(round_.value() + 2);
    plan_.activated_round.reset();
    return std::move(plan_);
  }

 private:
  // Applies or withholds a proposal. Returns its reason, with the outcome.
  Reason judged(Proposal proposal, const Turn& turn) {
    proposal.reason.round = round_;
    proposal.reason.outcome = judge(proposal, turn.mode, proposal.reason);
    const Outcome outcome = proposal.reason.outcome;
    if (outcome == Outcome::changed || outcome == Outcome::clamped) {
      changes_.push_back(applied_change(turn, proposal));
    }
    return std::move(proposal.reason);
  }

  // Returns the rest that the proposal would break, or null.
  Rest* rest_of(const Turn& turn, const Proposal& proposal) {
    if (!is_for_time(proposal) || turn.mode != PolicyMode::on) return nullptr;
    return find_rest(effects_, turn.policy->name(), proposal.change.knob, round_);
  }

  Reason resting(Reason reason, const Rest& rest) const {
    reason.round = round_;
    reason.outcome = withhold(reason, ReasonCode::resting,
                              concat("an earlier change of this kind did not shorten the step and "
                                     "was taken back; the next try is possible from round ",
                                     rest.until));
    return reason;
  }

  Outcome judge(const Proposal& proposal, PolicyMode mode, Reason& reason) {
    if (mode == PolicyMode::observe) return Outcome::observed;
    if (nobody_applies_) {
      return withhold(reason, ReasonCode::nobody_applies_plans, "all ranks only watch");
    }
    if (in_flight_) {
      return withhold(reason, ReasonCode::plan_in_flight,
                      concat("plan ", newest_.id.number, " is not applied by the ranks yet"));
    }
    if (reason.policy != PolicyKind::guard && round_ < plan_.hold_until) {
      return withhold(reason, ReasonCode::hold_in_force,
                      concat("the guard keeps the plan unchanged until round ", plan_.hold_until));
    }
    if (is_forced(proposal.change, config_.force)) {
      return withhold(reason, ReasonCode::override_applied, "force.shares is set");
    }
    const ChangeResult result = apply_change(plan_, proposal.change, job_);
    if (result.outcome == Outcome::vetoed) return withhold(reason, result.code, result.note);
    if (result.outcome == Outcome::clamped) {
      reason.code = result.code;
      reason.text += concat("; ", result.note);
    }
    return result.outcome;
  }

  const JobFacts& job_;
  const Config& config_;
  const Plan& newest_;
  SaidState& said_;
  Effects& effects_;
  RoundId round_;
  bool in_flight_;
  bool nobody_applies_;
  Plan plan_;
  std::vector<Reason> reasons_;
  std::vector<AppliedChange> changes_;
};

// Records the round in which the plan became active: this one is the first to show it.
void note_activation(Plan& plan, const StepSummary& summary) {
  if (plan.activated_round || summary.reporting == 0) return;
  if (summary.plan_applied_max >= plan.id.number) plan.activated_round = summary.round;
}

struct Answer {
  PolicyOutput output;
  std::vector<Reason> failure;  // one, or none
};

using PolicyCall = PolicyOutput (Policy::*)(const PolicyInput&, PolicyState) const;

// Asks a policy and keeps its next state. Own policies do not throw, and their states grow with the
// ranks, so only the state of a custom policy is copied. `failed` completes the sentence about a
// policy that throws.
Answer ask(const Turn& turn, PolicyCall call, const PolicyInput& input, std::string_view failed) {
  const Policy& policy = *turn.policy;
  PolicyState before;
  if (policy.kind() == PolicyKind::custom) before = *turn.state;
  std::string what = "an exception of unknown type";
  try {
    Answer answer{(policy.*call)(input, std::move(*turn.state)), {}};
    *turn.state = std::move(answer.output.state);
    return answer;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  *turn.state = std::move(before);
  Answer answer;
  answer.failure.push_back(
      own_reason(ReasonCode::policy_failed, input.signals.round,
                 concat("policy ", policy.name(), " failed ", failed, ": ", what)));
  answer.failure.back().policy = policy.kind();
  return answer;
}

// Completes the findings of a policy.
std::vector<Reason> findings_of(std::vector<Reason> findings, PolicyKind kind, RoundId round) {
  for (Reason& finding : findings) {
    finding.policy = kind;
    finding.round = round;
    if (finding.outcome == Outcome::unspecified) finding.outcome = Outcome::reported;
  }
  return findings;
}

// Keeps the smaller limit of each rank.
void narrow(std::vector<std::uint64_t>& most, std::vector<std::uint64_t> by_policy) {
  if (most.empty()) return most.swap(by_policy);
  for (std::size_t r = 0; r < most.size() && r < by_policy.size(); ++r) {
    most[r] = std::min(most[r], by_policy[r]);
  }
}

// Computes WorkFactors by our own policies among `turns`.
std::vector<double> work_factors_of(const PolicyInput& input, std::span<const Turn> turns,
                                    const std::vector<std::uint32_t>& shares) {
  Plan draft = input.plan;
  draft.shares = shares;
  std::vector<double> factors;
  for (const Turn& turn : turns) {
    if (turn.mode != PolicyMode::on || turn.policy->kind() == PolicyKind::custom) continue;
    std::vector<double> own = turn.policy->work_factors(input, draft, *turn.state);
    if (factors.empty()) {
      factors.swap(own);
    } else {
      for (std::size_t r = 0; r < own.size(); ++r) factors[r] *= own[r];
    }
  }
  return factors;
}

// Returns the most samples of a step that each rank may have; empty = unlimited.
std::vector<std::uint64_t> ask_policies(const PolicyInput& input, std::span<const Turn> turns,
                                        Draft& draft) {
  std::vector<std::uint64_t> most_samples;
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const Turn& turn = turns[t];
    PolicyInput narrowed = input;
    narrowed.most_samples = most_samples;
    narrowed.work_factors = [&input, asked = turns.first(t)](const auto& shares) {
      return work_factors_of(input, asked, shares);
    };
    Answer answer = ask(turn, &Policy::propose, narrowed, "and is ignored");
    for (Reason& finding :
         findings_of(std::move(answer.output.findings), turn.policy->kind(), input.signals.round)) {
      draft.report(std::move(finding));
    }
    draft.take(turn, std::move(answer.output.proposals), std::move(answer.failure));
    if (turn.mode == PolicyMode::on) narrow(most_samples, std::move(answer.output.most_samples));
  }
  return most_samples;
}

void tell_circumstances(const StepSignals& signals, const StepSummary& summary, SaidState& said,
                        Draft& draft) {
  constexpr std::uint32_t kLongest = 1'000'000'000;
  if (is_news(said.nobody_applies, draft.nobody_applies())) {
    draft.report(own_reason(ReasonCode::nobody_applies_plans, summary.round,
                            "all ranks only watch, so no plan is sent"));
  }
  said.missing_rounds = summary.missing > 0 ? std::min(said.missing_rounds, kLongest) + 1 : 0;
  if (said.missing_rounds != kMissingRounds) return;
  Reason reason = own_reason(
      ReasonCode::ranks_missing, summary.round,
      concat(summary.missing, " ranks are missing from ", kMissingRounds, " rounds in a row"));
  const auto first = std::ranges::find(signals.faults, ReportFault::missing, &FaultyReport::fault);
  if (first != signals.faults.end()) reason.rank = first->rank;
  draft.report(std::move(reason));
}

// Asks each of our own policies that is on for the other changes that the shares of `draft` need.
// Returns their proposals.
std::vector<FitProposal> proposals_to_fit(const PolicyInput& input, std::span<const Turn> turns,
                                          const Plan& draft) {
  std::vector<FitProposal> proposals;
  for (const Turn& turn : turns) {
    const Policy& policy = *turn.policy;
    if (turn.mode != PolicyMode::on || policy.kind() == PolicyKind::custom) continue;
    PolicyOutput output = policy.fit(input, draft, std::move(*turn.state));
    *turn.state = std::move(output.state);
    for (Proposal& proposal : output.proposals) {
      proposal.reason.policy = policy.kind();
      proposals.push_back({turn, std::move(proposal)});
    }
  }
  return proposals;
}

bool is_on(std::span<const Turn> turns, std::string_view policy) {
  return std::ranges::any_of(turns, [&](const Turn& turn) {
    return turn.mode == PolicyMode::on && turn.policy->name() == policy;
  });
}

// Returns why the draft, which takes a change back, must not be published as it is; empty if it
// may. Fewer bits or heavier actions may be the reason for which the plan fits.
std::string why_not_back(const PolicyInput& input, std::span<const Turn> turns,
                         const Condemned& condemned, const Draft& draft) {
  constexpr double kNearlyFull = 0.9;
  for (const AppliedChange& change : condemned.changes) {
    if (!is_on(turns, change.policy)) return concat("policy ", change.policy, " is no longer on");
    const bool is_full = input.summary.memory_used_ratio.max > kNearlyFull;
    if (change.knob == Knob::precision && is_full) return "a rank's memory is nearly full";
  }
  return proposals_to_fit(input, turns, draft.plan()).empty()
             ? std::string()
             : "the earlier plan would exceed a rank's memory budget";
}

// Takes back the oldest condemned changes in a plan of its own: in a round in which nothing else
// changes, while no plan is being measured. Changes that cannot be taken back stay for good.
void take_back(const PolicyInput& input, std::span<const Turn> turns,
               std::span<const std::uint64_t> most_samples, Effects& effects, Draft& draft) {
  if (effects.condemned.empty() || effects.trial || !draft.is_at_rest()) return;
  const Condemned condemned = effects.condemned.front();
  std::string why_not = draft.take_back(condemned, most_samples);
  if (why_not.empty()) why_not = why_not_back(input, turns, condemned, draft);
  Reason reason;
  if (why_not.empty()) {
    draft.note_changes(changes_back(condemned));
    reason = explain_taken_back(condemned, note_taken_back(effects, input.summary.round));
  } else {
    draft.drop_changes();
    effects.condemned.erase(effects.condemned.begin());
    reason = explain_stays(condemned, why_not);
  }
  reason.round = input.summary.round;
  draft.report(std::move(reason));
}

// Applies a proposal for the first step. Returns the reason, with the outcome.
Reason carry_out(Proposal proposal, PolicyMode mode, const PolicyInput& input, Plan& plan) {
  Reason reason = std::move(proposal.reason);
  reason.outcome = Outcome::observed;
  if (mode != PolicyMode::on) return reason;
  const ChangeResult result = is_forced(proposal.change, input.config.force)
                                  ? ChangeResult{Outcome::vetoed, ReasonCode::override_applied,
                                                 "force.shares sets other shares"}
                                  : apply_change(plan, proposal.change, input.job);
  reason.outcome = result.outcome;
  if (!result.note.empty()) {
    reason.code = result.code;
    reason.text += concat("; ", result.note);
  }
  return reason;
}

// Asks the policies for the plan of the first step, and applies their proposals.
void start_policies(const PolicyInput& input, std::span<const Turn> turns, Begun& begun) {
  std::vector<std::uint64_t> most_samples;
  for (const Turn& turn : turns) {
    PolicyInput narrowed = input;
    narrowed.most_samples = most_samples;
    Answer answer = ask(turn, &Policy::at_start, narrowed, "at the start");
    PolicyOutput& output = answer.output;
    if (turn.mode == PolicyMode::on) narrow(most_samples, std::move(output.most_samples));
    for (Proposal& proposal : output.proposals) {
      output.findings.push_back(carry_out(std::move(proposal), turn.mode, input, begun.state.plan));
    }
    std::ranges::move(findings_of(std::move(output.findings), turn.policy->kind(), {}),
                      std::back_inserter(begun.reasons));
    std::ranges::move(answer.failure, std::back_inserter(begun.reasons));
  }
}

// Takes the effects out of the state, for this start of the job.
Effects effects_before(ControlState& kept, const JobFacts& job) {
  const RoundId last = kept.history.empty() ? RoundId() : kept.history.rounds().back().round;
  return effects_of_start(state_of(kept, kEffects).take_or_fresh<Effects>(), job.incarnation,
                          kept.plan, last);
}

}  // namespace

Decided decide(const JobFacts& job, const Config& config, const PolicySet& policies,
               ControlState state, const StepSignals& signals) {
  Decided decided{std::move(state), {}};
  ControlState& kept = decided.state;
  Decision& decision = decided.decision;

  SeenRound seen = see_round(signals);
  decision.summary = std::move(seen.summary);
  note_activation(kept.plan, decision.summary);
  Estimates estimates = estimate(state_of(kept, kEstimates).take_or_fresh<Estimates>(), job, config,
                                 kept.plan, signals, decision.summary, std::move(seen.timings));

  Effects effects = learn_effects(effects_before(kept, job), decision.summary, estimates, kept.plan,
                                  samples_of_step(job, kept.plan));

  SaidState said = said_before(state_of(kept, kOwnState), policies.size());
  const PolicyInput input{job,       config,       kept.plan, signals, decision.summary,
                          estimates, kept.history, effects};
  Draft draft(job, config, kept.plan, decision.summary, said, effects);
  const std::vector<Turn> turns = turns_of(policies, config, kept);
  const std::vector<std::uint64_t> most_samples = ask_policies(input, turns, draft);
  draft.apply_overrides();
  if (moves_samples(kept.plan, draft.plan())) {
    draft.take_fit(proposals_to_fit(input, turns, draft.plan()));
  }
  take_back(input, turns, most_samples, effects, draft);
  tell_circumstances(signals, decision.summary, said, draft);

  decision.reasons = draft.take_reasons();
  std::vector<AppliedChange> changes = draft.take_changes();
  decision.plan = std::move(draft).finish();
  note_decision(effects, {decision.summary, decision.reasons, kept.plan,
                          decision.plan ? *decision.plan : kept.plan, std::move(changes)});
  if (decision.plan) kept.plan = *decision.plan;
  decision.slow = slow_findings(estimates.slowness, job.node_of_rank);
  decision.effects = effects.list;
  decision.scores = effects.scores;
  state_of(kept, kEffects) = PolicyState::of(std::move(effects));
  state_of(kept, kEstimates) = PolicyState::of(std::move(estimates));
  state_of(kept, kOwnState) = PolicyState::of(std::move(said));
  if (decision.summary.reporting > 0) kept.history.add(decision.summary);
  return decided;
}

Begun begin_job(const JobFacts& job, const Config& config, const PolicySet& policies,
                ControlState state) {
  Begun begun{std::move(state), {}};
  begun.state.plan.scaler = config.loss_scale.rules;
  auto forced = apply_forced(begun.state.plan, config.force, job);
  if (forced && forced->outcome != Outcome::vetoed) begun.reasons.push_back(std::move(*forced));
  const StepSignals no_signals;
  const StepSummary no_summary;
  Estimates estimates =
      after_restart(state_of(begun.state, kEstimates).take_or_fresh<Estimates>(), job);
  Plan& plan = begun.state.plan;
  Effects effects = effects_before(begun.state, job);
  const std::vector<std::uint32_t> shares_before = plan.shares;
  const PolicyInput input{
      job, config, plan, no_signals, no_summary, estimates, begun.state.history, effects};
  const std::vector<Turn> turns = turns_of(policies, config, begun.state);
  start_policies(input, turns, begun);
  if (plan.shares != shares_before) {
    for (FitProposal& fit : proposals_to_fit(input, turns, plan)) {
      begun.reasons.push_back(carry_out(std::move(fit.proposal), PolicyMode::on, input, plan));
    }
  }
  note_start(effects, begun.reasons, plan);
  state_of(begun.state, kEffects) = PolicyState::of(std::move(effects));
  state_of(begun.state, kEstimates) = PolicyState::of(std::move(estimates));
  return begun;
}

}  // namespace cox
