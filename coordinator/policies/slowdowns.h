// Slowdowns: how much slower each rank was than it should have been in one round, overall and by
// phase, as logarithms: log(own work / expected) for the whole, and for a phase
// log(1 + (time - expected time) / expected own work), so that phases say which part of the whole
// they cost and small ones cannot shout. What is expected is the median of the *other* ranks in the
// same round (what slows all of them slows nobody), or the rank's own past where there are at most
// two. Communication and rank 0's hosting are no own work and never enter. Pure.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "coordinator/core/timings.h"
#include "coordinator/policies/straggler_memory.h"

namespace cox {

struct Slowdowns {
  std::array<std::vector<double>, kChannels> excess;  // [channel][i] of timings.ranks[i]
  std::array<bool, kChannels> in_use{};               // false = no rank spent time there
};

// Requires: at least three ranks in `timings`, `summary` made from the same reports.
Slowdowns against_others(const Timings& timings, const StepSummary& summary);

// The baselines of `memory` are read and then moved towards this round, slowly, and not at all for
// ranks that are named. Of two ranks only what the other did not suffer as well counts as excess.
Slowdowns against_own_past(const Timings& timings, StragglerMemory& memory);

}  // namespace cox
