// Compares what the ranks leave behind, in a save or when the job ends: equal bits on all ranks,
// and finite ones. The ballot of the last step is too early for that, because the weights change
// after it. Training thread.
#pragma once

#include <string>

#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

// EndFinding is what is wrong with it; equal on all ranks. Empty texts: nothing.
struct EndFinding {
  std::string different;   // "weights that differ from rank 0's on rank 1"
  std::string not_finite;  // "rank 0: parameter 3 of 12 (...) is not finite"
};

// Compares the end states of all actuators that leave something. Of a rank on which something but
// steps wrote them, `end` compares nothing, since a rank may use its weights as it likes after its
// loop; that rank's log says so. Collective. Throws cox::Error where ranks do not answer.
enum class Leaves : bool { save, end };
EndFinding compare_end_states(const Membership& job, const ActuatorList& actuators, Leaves leaves);

}  // namespace cox::detail
