// Speeds: what policy `shares` learns from the reports of a round. Speed is delivered time: seconds
// per sample of a rank's own work on its samples (data, forward, backward, compute), and beside it
// the seconds of a step that do not depend on samples (optimizer). Waiting and communication never
// enter. What slows all ranks alike is divided out (the median ratio to the levels), so that all
// levels are on one scale.
//
// A rank's level is the trimmed mean of its last reports while they are few, then an exponential
// mean over 64, outliers cut. Two CUSUM tests a rank (cusum.h) watch for a real change, slower or
// faster; when one alarms, the level jumps to the mean of the reports since then. Their noise is
// measured from report to report, so a change of level is none.
//
// Not counted: reports of ranks that finished, only watch or had no samples; those that cover a
// round under other shares, and the first one under new shares.
#pragma once

#include "coordinator/core/policy.h"
#include "coordinator/policies/shares_notes.h"

namespace cox {

// Linear in ranks. Requires: notes of this world size.
void learn_speeds(const PolicyInput& input, SharesNotes& notes);

// Deviation of the level of a rank, as a part of it. Requires: count() of the rank above 0.
double level_deviation(SharesNotes& notes, std::size_t rank);

}  // namespace cox
