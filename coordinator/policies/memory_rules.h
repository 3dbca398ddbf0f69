// What policy `memory` says about the user's rules for blocks and about actions that failed. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/policies/memory_round.h"

namespace cox {

// How many blocks have a forced action, and which rules fit no block or cannot be applied.
std::vector<Reason> rule_findings(const JobFacts& job, const MemoryConfig& config);

// Why a plan in force is not to be used: the first block with an action that it may not have.
// Requires: there is one.
Reason rule_reason(const PolicyInput& input, const RankView& view,
                   std::span<const ActionSet> allowed, std::span<const RestingAction> resting);

std::string failure_text(const JobFacts& job, const ActionEvent& event, unsigned retry_rounds);
std::string retry_text(const JobFacts& job, const ActionEvent& event, unsigned retry_rounds);

}  // namespace cox
