#include <exception>
#include <string>
#include <utility>

#include "coordinator/core/decide.h"
#include "coordinator/core/plan_change.h"

namespace cox {
namespace {

Reason failure_of(const Policy& policy, std::string_view what) {
  Reason reason;
  reason.policy = policy.kind();
  reason.code = ReasonCode::policy_failed;
  reason.outcome = Outcome::reported;
  reason.text =
      "policy " + std::string(policy.name()) + " failed at the start: " + std::string(what);
  return reason;
}

Reason carry_out(Proposal proposal, PolicyMode mode, const OverrideConfig& force,
                 const JobFacts& job, Plan& plan) {
  Reason reason = std::move(proposal.reason);
  reason.outcome = Outcome::observed;
  if (mode != PolicyMode::on) return reason;
  const ChangeResult result =
      is_forced(proposal.change, force)
          ? ChangeResult{Outcome::vetoed, ReasonCode::override_applied, "the user forces another"}
          : apply_change(plan, proposal.change, job);
  reason.outcome = result.outcome;
  if (!result.note.empty()) {
    reason.code = result.code;
    reason.text += "; " + result.note;
  }
  return reason;
}

}  // namespace

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
  for (const auto& policy : policies) {
    const PolicyMode mode = mode_of(config, policy->name(), PolicyMode::on);
    if (mode == PolicyMode::off) continue;
    const PolicyInput input{job,        config,    begun.state.plan,   no_signals,
                            no_summary, estimates, begun.state.history};
    PolicyOutput output;
    try {
      output = policy->at_start(input, state_of(begun.state, policy->name()));
    } catch (const std::exception& error) {
      begun.reasons.push_back(failure_of(*policy, error.what()));
      continue;
    } catch (...) {
      begun.reasons.push_back(failure_of(*policy, "an exception of unknown type"));
      continue;
    }
    state_of(begun.state, policy->name()) = std::move(output.state);
    for (Proposal& proposal : output.proposals) {
      output.findings.push_back(
          carry_out(std::move(proposal), mode, config.force, job, begun.state.plan));
    }
    for (Reason& reason : output.findings) {
      reason.policy = policy->kind();
      if (reason.outcome == Outcome::unspecified) reason.outcome = Outcome::reported;
      begun.reasons.push_back(std::move(reason));
    }
  }
  state_of(begun.state, kEstimates) = PolicyState::of(std::move(estimates));
  return begun;
}

}  // namespace cox
