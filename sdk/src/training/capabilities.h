// Capabilities names the capabilities of every session. Loops call a capability for its special
// functions; the session calls all capabilities alike, through their list. This file is the only
// list of a job's capabilities. Training thread only.
#pragma once

#include <functional>

#include "coxswain/session.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

class ActuatorList;
class BlockWatch;
class FormatActuator;
class Fp8Watch;
class GradientHolders;
class LossScale;
class MemoryActuator;
class MemoryProbe;
class NumericsWatch;

// Refers to actuators of a session's list. Valid while the session's state exists.
struct Capabilities {
  FormatActuator& formats;
  LossScale& loss_scale;
  Fp8Watch& fp8;
  MemoryActuator& memory;
  MemoryProbe& probe;
  NumericsWatch& numerics;
  BlockWatch& blocks;
  GradientHolders& gradients;
};

// Adds the actuators of every capability to the list, in the order in which a session calls them.
// `job` must outlive the list.
Capabilities add_capabilities(ActuatorList& list, const Membership& job);

// AddActuators adds the actuators of a session to its list, including those of the capabilities.
using AddActuators = std::function<Capabilities(ActuatorList& list, const Membership& job)>;

// Starts a session as Session::start() does, with parts that a test can replace: the actuators, and
// the layer between the ranks and their transport. Collective and blocking; throws cox::Error.
Session start_session(int argc, const char* const* argv, SessionOptions options,
                      const AddActuators& add_actuators = add_capabilities,
                      const WrapRanks& wrap_ranks = {});

}  // namespace cox::detail
