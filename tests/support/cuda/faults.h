// Reports accesses of the host to memory closed to the host (Machine::fault). Passes all other
// faults to the program's own handler of SIGSEGV.
#pragma once

namespace cox::standin {

// Installs the handler, again if the program has replaced it. A call with the handler in place is
// cheap.
void watch_faults();

}  // namespace cox::standin
