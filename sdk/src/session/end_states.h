// Compares the final state of the ranks, in a save or when the job ends: the bits must be equal on
// all ranks, and finite. The ballot of the last step is too early for the comparison, because the
// weights change after it. Training thread.
#pragma once

#include <string>

#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

// EndFinding describes the errors, equal on all ranks. A text is empty if there is none.
struct EndFinding {
  std::string different;   // "the weights of rank 1 differ from those of rank 0"
  std::string not_finite;  // "parameter 3 of 12 (...) is not finite", on the first such rank
};

// Compares the end states of all actuators that have one (Lasting). With Leaves::save every rank
// counts. After the last step of a job a rank may use its weights freely. Leaves::end therefore
// leaves out a rank whose weights were written by code other than steps, and logs the fact on that
// rank. Collective. Throws cox::Error if ranks do not answer.
enum class Leaves : bool { save, end };
EndFinding compare_end_states(const Membership& job, const ActuatorList& actuators, Leaves leaves);

}  // namespace cox::detail
