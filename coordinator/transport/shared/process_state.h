// Asks the operating system whether the process of another rank of this node runs, stands still or
// is gone. A process is known by its number and the space of numbers that it lives in, so that a
// rank in another container is never mistaken for a stranger. Any thread; microseconds a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "coordinator/core/stall.h"

namespace cox::transport {

struct ProcessId {
  std::int32_t number = 0;  // 0 = not known
  std::uint64_t space = 0;  // inode of the PID namespace; 0 = not known
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();

// Unknown where the process lives in another space of numbers, or nobody can say.
ProcessState state_of(const ProcessId& process);

// Reads the line of /proc/PID/stat: the letter behind the name, which may hold any characters.
// Pure.
ProcessState parse_process_state(std::string_view stat_line);

}  // namespace cox::transport
