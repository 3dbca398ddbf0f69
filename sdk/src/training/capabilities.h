// Capabilities names the capabilities that every session has. Loops ask one of them for what no
// other capability offers; the session itself calls all of them alike, through their list. This is
// the one place where the capabilities of a job are listed. Training thread only.
#pragma once

namespace cox::detail {

class ActuatorList;
class BlockWatch;
class FormatActuator;
class Membership;
class MemoryActuator;
class MemoryProbe;
class NumericsWatch;

// Refers to actuators of a session's list. Valid while the session's state exists.
struct Capabilities {
  FormatActuator& formats;
  MemoryActuator& memory;
  MemoryProbe& probe;
  NumericsWatch& numerics;
  BlockWatch& blocks;
};

// Adds the actuators of every capability to the list, in the order in which a session calls them.
// `job` must outlive the list.
Capabilities add_capabilities(ActuatorList& list, const Membership& job);

}  // namespace cox::detail
