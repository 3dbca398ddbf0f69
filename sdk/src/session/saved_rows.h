// Rows that a save holds of every rank: what actuators remember, for a save between steps and for
// the run that goes on from it. Training thread only.
#pragma once

#include <span>
#include <vector>

#include "coordinator/core/units.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

class SessionState;

// Returns what actuators remember on this rank, one tensor each: "fp8.rank3". Other ranks have as
// many.
std::vector<NamedTensor> own_rows(SessionState& state);

// Hands what was saved to the actuators, after the reducer was made. Where it is of another world
// size or does not fit, the actuator starts anew, and the log says so.
void load_rows(SessionState& state, std::span<const NamedTensor> saved);

}  // namespace cox::detail
