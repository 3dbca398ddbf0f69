// How what ranks measured of their memory comes together on rank 0. Collective, blocking by
// polling; before the first round only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/transport/communicator.h"

namespace cox::detail {

// One entry per rank on rank 0, nothing on the others.
Result<std::vector<planner::RankProblem>> gather_problems(transport::Communicator& ranks,
                                                          const planner::RankProblem& mine);

// The form in which a problem travels, and back. invalid_argument for words that are none.
std::vector<std::int64_t> to_words(const planner::RankProblem& rank);
Result<planner::RankProblem> from_words(std::span<const std::int64_t> words);

}  // namespace cox::detail
