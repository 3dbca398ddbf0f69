// Compares what the ranks leave behind, in a save or when the job ends: equal bits on all ranks,
// and finite ones. The ballot of the last step is too early for that, because the weights change
// after it. Training thread.
#pragma once

#include <string>

#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

// EndFinding tells what is wrong, alike on all ranks. A text is empty where nothing is.
struct EndFinding {
  std::string different;   // "the weights of rank 1 differ from those of rank 0"
  std::string not_finite;  // "parameter 3 of 12 (...) is not finite", of the first such rank
};

// Compares the end states of all actuators that leave something. At the end of a job a rank may use
// its weights as it likes, so `end` leaves out a rank on which something but steps wrote them, and
// that rank's log says so. Collective. Throws cox::Error where ranks do not answer.
enum class Leaves : bool { save, end };
EndFinding compare_end_states(const Membership& job, const ActuatorList& actuators, Leaves leaves);

}  // namespace cox::detail
