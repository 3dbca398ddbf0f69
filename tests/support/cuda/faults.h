// Sees to it that accesses of the host to memory that is closed to it are reported
// (Machine::fault), whatever other handler of SIGSEGV the program has: that one is called for all
// other faults.
#pragma once

namespace cox::standin {

// Installs the handler, or installs it again where the program has set another one since. Cheap
// where it stands.
void watch_faults();

}  // namespace cox::standin
