// The parts that Session::start() puts together, for tests that replace one of them: the list of
// actuators, which is the one place where capabilities are listed, and the session over a state.
// Training thread only.
#pragma once

#include <memory>
#include <vector>

#include "coxswain/session.h"
#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

class Membership;

// Makes the actuators of every capability, in the order in which a session calls them.
std::vector<std::unique_ptr<Actuator>> make_actuators(const Membership& job);

// Returns a session that shares the ownership of the state.
Session session_of(std::shared_ptr<SessionState> state);

}  // namespace cox::detail
