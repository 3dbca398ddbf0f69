// The texts of coordinator/wire/control.proto and states.proto as the lists of fields have them.
// Pure functions.
#pragma once

#include <string>

#include "coordinator/decide/control_state.h"
#include "tests/wire/random_values.h"

namespace cox::test {

struct ProtoFiles {
  std::string control;
  std::string states;  // those that Decide and the policies of Coxswain keep
};
ProtoFiles proto_files();

// Returns the state after one round of random signals with every policy on.
ControlState deciding_state(RandomValues& random);

}  // namespace cox::test
