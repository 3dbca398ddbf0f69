// The part of a step's work that does not grow with its samples (launches, set-up), as a number of
// samples that cost as much; one for all ranks, 0 until known. Even shares cannot show it, changed
// ones do: a rank with twice the samples needs less than twice the time. Fitted to what all ranks
// needed before and after a change of shares, by least absolute deviations, so that a rank whose
// speed changed meanwhile does not matter. Pure apart from the notes.
#pragma once

#include "coordinator/policies/shares_notes.h"

namespace cox {

inline constexpr double kFixedRounds = 8;  // after a change of shares, then the fit is made

// To be called when shares change, before anything is learnt under the new ones.
void remember_work(SharesNotes& notes);

// After kFixedRounds under new shares. Takes a new number only if the old one explains the change
// badly (by more than `least_error` a rank in the mean, and more than noise does) and the new one
// at least twice as well; then levels are put on the new terms.
void learn_fixed_samples(SharesNotes& notes, double least_error);

}  // namespace cox
