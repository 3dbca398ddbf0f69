// The part of a front that may be used: settings, the job's capabilities and actions that failed
// say which blocks may have which actions. A part of the model of policy `memory` (model.h). Pure.
#pragma once

#include <span>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/policy.h"
#include "coordinator/policies/memory/model.h"

namespace cox {

// Returns the actions that each block may have; keep where nothing is left.
std::vector<ActionSet> allowed_of_blocks(const PolicyInput& input,
                                         std::span<const RestingAction> resting);

bool is_allowed(std::span<const MemoryAction> actions, std::span<const ActionSet> allowed);

// Returns the front of the points that may be used. One that may not is taken with other actions
// for the blocks that it is about, and with a bound of its bytes.
MemoryFront usable_front(const MemoryModel& model, std::span<const ActionSet> allowed);

}  // namespace cox
