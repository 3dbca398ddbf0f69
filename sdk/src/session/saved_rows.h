// Rows of a save that hold the actuators' state of each rank, for a save between steps and for the
// run that resumes from it. Training thread only.
#pragma once

#include <span>
#include <vector>

#include "coordinator/core/units.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

class SessionState;

// Returns the actuators' state on this rank, one tensor each: "fp8.rank3". The number of tensors is
// the same on all ranks.
std::vector<NamedTensor> own_rows(SessionState& state);

// Loads saved rows into the actuators, after the reducer was made. If a row belongs to another
// world size or does not fit, the actuator starts anew, and the log reports so.
void load_rows(SessionState& state, std::span<const NamedTensor> saved);

}  // namespace cox::detail
