// Locks on open files. Processes use locks to detect another process with the same file. A lock
// ends with the last descriptor of the open file, and so with the process. Never waits; any thread.
#pragma once

#include "coordinator/core/status.h"

namespace cox::io {

// LockCalls are the system calls that lock a file while its descriptor is open. Each returns 0, or
// the errno of the failure. Tests replace the calls with those of other file systems.
struct LockCalls {
  int (*whole_file)(int descriptor);
  int (*record)(int descriptor);  // for file systems without locks of whole files
};
LockCalls system_lock_calls();  // flock(), then fcntl(F_OFD_SETLK)

// FileLocking is the outcome of an attempt to lock a file. `none`: the file system has no locks.
enum class FileLocking { locked, held_elsewhere, none };

// Locks an open file until the file is closed or the process ends. Never waits. REQUIRES: the file
// is open for writing. Errors: those of the calls.
Result<FileLocking> lock_file(int descriptor, const LockCalls& calls);

}  // namespace cox::io
