// Capabilities names the capabilities that every session has. Loops ask one of them for what no
// other capability offers; the session itself calls all of them alike, through their list. This is
// the one place where the capabilities of a job are listed. Training thread only.
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

// Adds the actuators of a session to its list, those of the capabilities among them.
using AddActuators = std::function<Capabilities(ActuatorList& list, const Membership& job)>;

// Starts a session as Session::start() does, with parts that a test replaces: the actuators, and
// what stands between the ranks and their transport. Collective and blocking; throws cox::Error.
Session start_session(int argc, const char* const* argv, SessionOptions options,
                      const AddActuators& add_actuators = add_capabilities,
                      const WrapRanks& wrap_ranks = {});

}  // namespace cox::detail
