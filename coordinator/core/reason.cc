#include "coordinator/core/reason.h"

#include <algorithm>
#include <iterator>

namespace cox {
namespace {

struct CodeName {
  ReasonCode code;
  std::string_view name;
};
constexpr CodeName kCodeNames[] = {
    {ReasonCode::unspecified, "unspecified"},
    {ReasonCode::plan_in_flight, "plan_in_flight"},
    {ReasonCode::hold_in_force, "hold_in_force"},
    {ReasonCode::not_capable, "not_capable"},
    {ReasonCode::invalid_proposal, "invalid_proposal"},
    {ReasonCode::override_applied, "override_applied"},
    {ReasonCode::ranks_missing, "ranks_missing"},
    {ReasonCode::nobody_applies_plans, "nobody_applies_plans"},
    {ReasonCode::restored_at_other_world_size, "restored_at_other_world_size"},
    {ReasonCode::policy_failed, "policy_failed"},
    {ReasonCode::taken_back, "taken_back"},
    {ReasonCode::take_back_stays, "take_back_stays"},
    {ReasonCode::resting, "resting"},
    {ReasonCode::nonfinite_step, "nonfinite_step"},
    {ReasonCode::nonfinite_streak, "nonfinite_streak"},
    {ReasonCode::loss_spike, "loss_spike"},
    {ReasonCode::rollback_limit, "rollback_limit"},
    {ReasonCode::guard_recovered, "guard_recovered"},
    {ReasonCode::straggler_found, "straggler_found"},
    {ReasonCode::straggler_gone, "straggler_gone"},
    {ReasonCode::straggler_phase_moved, "straggler_phase_moved"},
    {ReasonCode::straggler_host, "straggler_host"},
    {ReasonCode::straggler_job_slow, "straggler_job_slow"},
    {ReasonCode::straggler_job_gone, "straggler_job_gone"},
    {ReasonCode::straggler_transient, "straggler_transient"},
    {ReasonCode::straggler_advice, "straggler_advice"},
    {ReasonCode::shares_changed, "shares_changed"},
    {ReasonCode::shares_kept, "shares_kept"},
    {ReasonCode::shares_limited, "shares_limited"},
    {ReasonCode::shares_unmeetable, "shares_unmeetable"},
    {ReasonCode::shares_hint, "shares_hint"},
    {ReasonCode::memory_over_budget, "memory_over_budget"},
    {ReasonCode::memory_breach, "memory_breach"},
    {ReasonCode::memory_infeasible, "memory_infeasible"},
    {ReasonCode::memory_room, "memory_room"},
    {ReasonCode::memory_fits, "memory_fits"},
    {ReasonCode::memory_rules, "memory_rules"},
    {ReasonCode::memory_block_failed, "memory_block_failed"},
    {ReasonCode::memory_block_retried, "memory_block_retried"},
    {ReasonCode::memory_straggler, "memory_straggler"},
    {ReasonCode::memory_unknown, "memory_unknown"},
    {ReasonCode::overflow_named, "overflow_named"},
    {ReasonCode::overflow_outside, "overflow_outside"},
    {ReasonCode::scaler_rules, "scaler_rules"},
    {ReasonCode::scaler_floor, "scaler_floor"},
    {ReasonCode::scaler_underflow, "scaler_underflow"},
    {ReasonCode::precision_start, "precision_start"},
    {ReasonCode::precision_forced, "precision_forced"},
    {ReasonCode::precision_lowered, "precision_lowered"},
    {ReasonCode::precision_raised, "precision_raised"},
    {ReasonCode::precision_overflow, "precision_overflow"},
    {ReasonCode::precision_not_faster, "precision_not_faster"},
    {ReasonCode::precision_no_evidence, "precision_no_evidence"},
    {ReasonCode::precision_forbidden, "precision_forbidden"},
    {ReasonCode::precision_requested, "precision_requested"},
    {ReasonCode::precision_straggler, "precision_straggler"},
    {ReasonCode::accumulation_raised, "accumulation_raised"},
    {ReasonCode::accumulation_lowered, "accumulation_lowered"},
    {ReasonCode::accumulation_kept, "accumulation_kept"},
    {ReasonCode::accumulation_start, "accumulation_start"},
    {ReasonCode::custom, "custom"},
};

}  // namespace

std::string_view to_string(PolicyKind kind) {
  const auto found = std::ranges::find(kPolicyKinds, kind, &NamedPolicyKind::kind);
  return found == kPolicyKinds.end() ? "unknown" : found->name;
}

std::string_view to_string(Outcome outcome) {
  const auto number = static_cast<std::size_t>(outcome);
  return number < kOutcomeNames.size() ? kOutcomeNames[number] : "unknown";
}

std::string_view to_string(ReasonCode code) {
  const auto found = std::ranges::find(kCodeNames, code, &CodeName::code);
  return found == std::end(kCodeNames) ? "unknown" : found->name;
}

}  // namespace cox
