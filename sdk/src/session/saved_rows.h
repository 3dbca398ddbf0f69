// Rows that a save holds of every rank: what actuators remember, for a save between steps and for
// the run that goes on from it. Training thread only.
#pragma once

#include <span>
#include <vector>

#include "coordinator/core/units.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

class SessionState;

// Returns, on rank `to`, what actuators remember on each rank, one tensor a rank. Empty where
// nothing is remembered. Collective. Throws cox::Error.
std::vector<NamedTensor> saved_rows(SessionState& state, RankId to = kRoot);

// Hands what was saved to the actuators, after the reducer was made. Where it is of another world
// size or does not fit, the actuator starts anew, and the log says so.
void load_rows(SessionState& state, std::span<const NamedTensor> saved);

}  // namespace cox::detail
