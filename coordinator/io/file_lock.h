// Locks on open files, by which processes tell whether another one uses the same file. A lock ends
// with the last descriptor of its opening, and so with the process. Does not wait; any thread.
#pragma once

#include "coordinator/core/status.h"

namespace cox::io {

// LockCalls are the calls by which a file is locked for as long as its descriptor is open. Each
// returns 0, or the errno of its failure. Tests replace them by those of other file systems.
struct LockCalls {
  int (*whole_file)(int descriptor);
  int (*record)(int descriptor);  // where the file system has no locks of whole files
};
LockCalls system_lock_calls();  // flock(), then fcntl(F_OFD_SETLK)

// FileLocking says what became of an attempt to lock a file. `none`: the file system has no locks.
enum class FileLocking { locked, held_elsewhere, none };

// Locks an open file until it is closed, or the process ends. Does not wait. REQUIRES: it is open
// for writing. Errors: those of the calls.
Result<FileLocking> lock_file(int descriptor, const LockCalls& calls);

}  // namespace cox::io
