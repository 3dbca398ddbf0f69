// Speeds: what policy `shares` learns from the reports of a round. Speed is delivered time: seconds
// per sample of a rank's own work on its samples (data, forward, backward, compute), and beside it
// the seconds of a step that do not depend on samples (optimizer). Waiting and communication never
// enter. What slows all ranks alike is divided out (the median ratio to the levels), so that all
// levels are on one scale.
//
// A rank's level (shares_levels.h) is the trimmed mean of its last reports while they are few, then
// an exponential mean over 64, outliers cut; at a change of speed, slower or faster, it jumps to
// the mean of the reports since then. The part of a step's work that does not grow with its samples
// shows when shares change and is learnt then (shares_fixed.h).
//
// Not counted: reports of ranks that finished, only watch or had no samples; those that cover a
// round under other shares, and the first one under new shares.
#pragma once

#include "coordinator/core/policy.h"
#include "coordinator/policies/shares_notes.h"

namespace cox {

// Linear in ranks. Requires: notes of this world size.
void learn_speeds(const PolicyInput& input, SharesNotes& notes);

}  // namespace cox
