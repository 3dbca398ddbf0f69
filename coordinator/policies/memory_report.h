// What policy `memory` holds the ranks to, for telemetry. Read from the state that the policy
// keeps, so it is the budget it decides by, with what it has measured. Pure; linear in the number
// of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/control_state.h"
#include "coordinator/core/job.h"

namespace cox {

// Most bytes of a step, one entry per rank, 0 where nothing limits it. Empty where memory is not
// planned or nothing is known of it.
std::vector<std::int64_t> memory_budgets(const JobFacts& job, const Config& config,
                                         const ControlState& state);

}  // namespace cox
