#include "coordinator/io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "coordinator/io/file.h"

namespace cox::io {
namespace {

bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS ||
         error == EINVAL;
}

int lock_whole_file(int descriptor) {
  return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

// The lock belongs to the open file, not to the process. Closing another descriptor of the file
// keeps the lock.
int lock_record(int descriptor) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &whole) == 0) return 0;
  return errno == EACCES ? EWOULDBLOCK : errno;
}

}  // namespace

LockCalls system_lock_calls() {
  return {lock_whole_file, lock_record};
}

Result<FileLocking> lock_file(int descriptor, const LockCalls& calls) {
  int error = calls.whole_file(descriptor);
  if (has_no_locks(error)) error = calls.record(descriptor);
  if (error == 0) return FileLocking::locked;
  if (error == EWOULDBLOCK) return FileLocking::held_elsewhere;
  if (has_no_locks(error)) return FileLocking::none;
  return errno_status(error, "cannot lock the file");
}

}  // namespace cox::io
