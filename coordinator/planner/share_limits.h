// What a share assignment must fit into before it is searched: numbers in range, minima and caps
// that leave room for the batch. Pure.
#pragma once

#include "coordinator/core/status.h"
#include "coordinator/planner/share_assignment.h"

namespace cox {

inline constexpr std::uint64_t kMostUnits = 1ull << 31;

// Errors: as assign_shares.
Status check_share_limits(const ShareProblem& problem);

}  // namespace cox
