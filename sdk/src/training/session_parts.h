// Session::start() with parts that a test replaces: the maker of the actuators, and what stands
// between the ranks and their transport. Training thread only.
#pragma once

#include <functional>

#include "coxswain/session.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {

// Adds the actuators of a session to its list, those of the capabilities among them.
using AddActuators = std::function<Capabilities(ActuatorList& list, const Membership& job)>;

// Collective and blocking. Throws cox::Error, as Session::start() does.
Session start_session(int argc, const char* const* argv, SessionOptions options,
                      const AddActuators& add_actuators = add_capabilities,
                      const WrapRanks& wrap_ranks = {});

}  // namespace cox::detail
