#include "coordinator/core/reason.h"

namespace cox {

std::string_view to_string(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::none:
      return "decide";
    case PolicyKind::guard:
      return "guard";
    case PolicyKind::loss_scale:
      return "loss_scale";
    case PolicyKind::precision:
      return "precision";
    case PolicyKind::memory:
      return "memory";
    case PolicyKind::stragglers:
      return "stragglers";
    case PolicyKind::shares:
      return "shares";
    case PolicyKind::cadence:
      return "cadence";
    case PolicyKind::custom:
      return "custom";
  }
  return "unknown";
}

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::unspecified:
      return "unspecified";
    case Outcome::changed:
      return "changed";
    case Outcome::unchanged:
      return "unchanged";
    case Outcome::observed:
      return "observed";
    case Outcome::vetoed:
      return "vetoed";
    case Outcome::clamped:
      return "clamped";
    case Outcome::reported:
      return "reported";
  }
  return "unknown";
}

std::string_view to_string(ReasonCode code) {
  switch (code) {
    case ReasonCode::unspecified:
      return "unspecified";
    case ReasonCode::plan_in_flight:
      return "plan_in_flight";
    case ReasonCode::hold_in_force:
      return "hold_in_force";
    case ReasonCode::not_capable:
      return "not_capable";
    case ReasonCode::invalid_proposal:
      return "invalid_proposal";
    case ReasonCode::override_applied:
      return "override_applied";
    case ReasonCode::full_plan_resent:
      return "full_plan_resent";
    case ReasonCode::ranks_missing:
      return "ranks_missing";
    case ReasonCode::nobody_applies_plans:
      return "nobody_applies_plans";
    case ReasonCode::restored_at_other_world_size:
      return "restored_at_other_world_size";
    case ReasonCode::policy_failed:
      return "policy_failed";
    case ReasonCode::nonfinite_step:
      return "nonfinite_step";
    case ReasonCode::nonfinite_streak:
      return "nonfinite_streak";
    case ReasonCode::loss_spike:
      return "loss_spike";
    case ReasonCode::rollback_limit:
      return "rollback_limit";
    case ReasonCode::guard_recovered:
      return "guard_recovered";
    case ReasonCode::straggler_found:
      return "straggler_found";
    case ReasonCode::straggler_gone:
      return "straggler_gone";
    case ReasonCode::straggler_phase_moved:
      return "straggler_phase_moved";
    case ReasonCode::shares_forced:
      return "shares_forced";
    case ReasonCode::memory_over_budget:
      return "memory_over_budget";
    case ReasonCode::memory_breach:
      return "memory_breach";
    case ReasonCode::memory_infeasible:
      return "memory_infeasible";
    case ReasonCode::memory_room:
      return "memory_room";
    case ReasonCode::memory_fits:
      return "memory_fits";
    case ReasonCode::memory_rules:
      return "memory_rules";
    case ReasonCode::memory_block_failed:
      return "memory_block_failed";
    case ReasonCode::memory_block_retried:
      return "memory_block_retried";
    case ReasonCode::memory_straggler:
      return "memory_straggler";
    case ReasonCode::memory_unknown:
      return "memory_unknown";
    case ReasonCode::custom:
      return "custom";
  }
  return "unknown";
}

}  // namespace cox
