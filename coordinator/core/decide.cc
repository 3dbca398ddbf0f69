#include "coordinator/core/decide.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "coordinator/core/draft.h"
#include "coordinator/core/said_before.h"

namespace cox {
namespace {

constexpr std::string_view kOwnState = "decide";
constexpr std::uint32_t kMissingRounds = 3;  // one late report is no news

PolicySet guard_first(const PolicySet& policies) {
  PolicySet ordered = policies;
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const auto& p) { return p->kind() == PolicyKind::guard; });
  return ordered;
}

Reason own_reason(ReasonCode code, RoundId round, std::string text) {
  Reason reason;
  reason.code = code;
  reason.outcome = Outcome::reported;
  reason.round = round;
  reason.text = std::move(text);
  return reason;
}

// The plan became active in some round at or before this one; this is the first to tell.
void note_activation(Plan& plan, const StepSummary& summary) {
  if (plan.activated_round || summary.reporting == 0) return;
  if (summary.plan_applied_max >= plan.id.number) plan.activated_round = summary.round;
}

struct Answer {
  PolicyOutput output;
  std::vector<Reason> failure;  // one, or none
};

Answer failed(const Policy& policy, PolicyState kept, RoundId round, std::string_view what) {
  Answer answer;
  answer.output.state = std::move(kept);
  answer.failure.push_back(own_reason(
      ReasonCode::policy_failed, round,
      "policy " + std::string(policy.name()) + " failed and is ignored: " + std::string(what)));
  answer.failure.back().policy = policy.kind();
  return answer;
}

// Own policies do not throw, and their states grow with the ranks: only a custom one is copied.
Answer ask(const Policy& policy, const PolicyInput& input, PolicyState state) {
  PolicyState kept;
  if (policy.kind() == PolicyKind::custom) kept = state;
  const RoundId round = input.signals.round;
  try {
    return {policy.propose(input, std::move(state)), {}};
  } catch (const std::exception& error) {
    return failed(policy, std::move(kept), round, error.what());
  } catch (...) {
    return failed(policy, std::move(kept), round, "an exception of unknown type");
  }
}

void keep_findings(std::vector<Reason> findings, PolicyKind kind, RoundId round,
                   std::vector<Reason>& reasons) {
  for (Reason& finding : findings) {
    finding.policy = kind;
    finding.round = round;
    if (finding.outcome == Outcome::unspecified) finding.outcome = Outcome::reported;
    reasons.push_back(std::move(finding));
  }
}

void tell_circumstances(const StepSignals& signals, const StepSummary& summary, bool nobody_applies,
                        SaidBefore& said, std::vector<Reason>& reasons) {
  if (said.is_news(SaidBefore::kNobodyApplies, nobody_applies)) {
    reasons.push_back(own_reason(ReasonCode::nobody_applies_plans, summary.round,
                                 "every rank only watches, so no plan goes out"));
  }
  if (said.streak(summary.missing > 0) != kMissingRounds) return;
  Reason reason = own_reason(ReasonCode::ranks_missing, summary.round,
                             std::to_string(summary.missing) + " ranks are missing from " +
                                 std::to_string(kMissingRounds) + " rounds in a row");
  const auto first = std::find_if(signals.faults.begin(), signals.faults.end(),
                                  [](const auto& f) { return f.fault == ReportFault::missing; });
  if (first != signals.faults.end()) reason.rank = first->rank;
  reasons.push_back(std::move(reason));
}

}  // namespace

Decided decide(const JobFacts& job, const Config& config, const PolicySet& policies,
               ControlState state, const StepSignals& signals) {
  Decided decided{std::move(state), {}};
  ControlState& kept = decided.state;
  Decision& decision = decided.decision;
  decision.summary = summarize(signals);
  note_activation(kept.plan, decision.summary);
  Estimates estimates = estimate(state_of(kept, kEstimates).take_or_fresh<Estimates>(), job, config,
                                 kept.plan, signals, decision.summary);

  SaidBefore said(std::move(state_of(kept, kOwnState)), policies.size());
  Draft draft(job, config, kept.plan, decision.summary);
  std::size_t place = 0;
  for (const auto& policy : guard_first(policies)) {
    const Asked asked{policy->kind(), mode_of(config, policy->name(), PolicyMode::on), place++};
    if (asked.mode == PolicyMode::off) continue;
    const PolicyInput input{job,       config,      kept.plan, signals, decision.summary,
                            estimates, kept.history};
    Answer answer = ask(*policy, input, std::move(state_of(kept, policy->name())));
    PolicyOutput& output = answer.output;
    state_of(kept, policy->name()) = std::move(output.state);
    keep_findings(std::move(output.findings), asked.kind, signals.round, draft.reasons());
    draft.take(asked, std::move(output.proposals), std::move(answer.failure), said);
  }
  draft.apply_overrides(said);
  tell_circumstances(signals, decision.summary, draft.nobody_applies(), said, draft.reasons());

  decision.reasons = std::move(draft.reasons());
  decision.plan = std::move(draft).finish();
  if (decision.plan) kept.plan = *decision.plan;
  decision.slow_ranks = slowest_ranks(estimates, kSlowRanksTold);
  state_of(kept, kOwnState) = std::move(said).state();
  state_of(kept, kEstimates) = PolicyState::of(std::move(estimates));
  if (decision.summary.reporting > 0) kept.history.add(decision.summary);
  return decided;
}

}  // namespace cox
