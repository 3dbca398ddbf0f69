#include "coordinator/core/draft.h"

#include <string>
#include <utility>

#include "coordinator/core/plan_change.h"

namespace cox {
namespace {

Outcome withhold(Reason& reason, ReasonCode code, const std::string& note) {
  reason.code = code;
  reason.text += reason.text.empty() ? "held back: " + note : "; held back: " + note;
  return Outcome::vetoed;
}

bool says_something_done(Outcome outcome) {
  return outcome == Outcome::changed || outcome == Outcome::clamped;
}

}  // namespace

Draft::Draft(const JobFacts& job, const Config& config, const Plan& newest,
             const StepSummary& summary)
    : job_(job),
      config_(config),
      newest_(newest),
      round_(summary.round),
      in_flight_(summary.plan_applied_max < newest.id.number),
      nobody_applies_(summary.reporting > 0 && summary.watching == summary.reporting),
      plan_(newest) {}

bool Draft::is_withheld_from_all(Reason& reason) const {
  if (nobody_applies_) {
    withhold(reason, ReasonCode::nobody_applies_plans, "every rank only watches");
  } else if (in_flight_) {
    withhold(reason, ReasonCode::plan_in_flight,
             "plan " + std::to_string(newest_.id.number) + " is not applied by the ranks yet");
  }
  return nobody_applies_ || in_flight_;
}

Outcome Draft::judge(const Proposal& proposal, PolicyMode mode, Reason& reason) {
  if (mode == PolicyMode::observe) return Outcome::observed;
  if (is_withheld_from_all(reason)) return Outcome::vetoed;
  if (reason.policy != PolicyKind::guard && round_ < plan_.hold_until) {
    return withhold(reason, ReasonCode::hold_in_force,
                    "no knob moves before round " + std::to_string(plan_.hold_until.value()));
  }
  if (is_forced(proposal.change, config_.force)) {
    return withhold(reason, ReasonCode::override_applied, "force.shares is set");
  }
  const ChangeResult result = apply_change(plan_, proposal.change, job_);
  if (result.outcome == Outcome::vetoed) return withhold(reason, result.code, result.note);
  if (result.outcome == Outcome::clamped) {
    reason.code = result.code;
    reason.text += "; " + result.note;
  }
  return result.outcome;
}

void Draft::take(const Asked& asked, std::vector<Proposal> proposals, std::vector<Reason> withheld,
                 SaidBefore& said) {
  for (Proposal& proposal : proposals) {
    Reason reason = std::move(proposal.reason);
    reason.policy = asked.kind;
    reason.round = round_;
    reason.outcome = judge(proposal, asked.mode, reason);
    (says_something_done(reason.outcome) ? reasons_ : withheld).push_back(std::move(reason));
  }
  if (said.is_news_of(asked.place, withheld)) {
    for (Reason& reason : withheld) reasons_.push_back(std::move(reason));
  }
}

void Draft::apply_overrides(SaidBefore& said) {
  std::optional<Reason> reason;
  if (!in_flight_ && !nobody_applies_) reason = apply_forced(plan_, config_.force, job_);
  const bool is_refused = reason && reason->outcome == Outcome::vetoed;
  const bool is_news = said.is_news(SaidBefore::kOverrideRefused, is_refused);
  if (!reason || (is_refused && !is_news)) return;
  reason->round = round_;
  reasons_.push_back(std::move(*reason));
}

std::optional<Plan> Draft::finish() && {
  if (in_flight_ || nobody_applies_ || same_effect(plan_, newest_)) return std::nullopt;
  plan_.id = {job_.incarnation, newest_.id.number + 1};
  plan_.earliest_round = RoundId(round_.value() + 2);
  plan_.activated_round.reset();
  return std::move(plan_);
}

}  // namespace cox
