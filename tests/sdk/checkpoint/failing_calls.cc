// Replaces the C library's calls for writing files. The call with a chosen number fails.
#include "tests/sdk/checkpoint/failing_calls.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>

namespace {

std::atomic<int> calls_until_failure{0};  // the call that counts down to 0 fails; 0 = none
std::atomic<int> made{0};

bool fails(int error) {
  ++made;
  if (calls_until_failure.load() == 0 || calls_until_failure.fetch_sub(1) != 1) return false;
  errno = error;
  return true;
}

}  // namespace

namespace sdk_test {

FailingCall::FailingCall(int number) {
  made = 0;
  calls_until_failure = number;
}

FailingCall::~FailingCall() {
  calls_until_failure = 0;
}

int FailingCall::calls_made() {
  return made;
}

}  // namespace sdk_test

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if (fails(EIO)) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

ssize_t write(int descriptor, const void* bytes, std::size_t count) {
  if (fails(ENOSPC)) return -1;
  return ::syscall(SYS_write, descriptor, bytes, count);
}

ssize_t pread(int descriptor, void* bytes, std::size_t count, off_t offset) {
  if (fails(EIO)) return -1;
  return ::syscall(SYS_pread64, descriptor, bytes, count, offset);
}

int fsync(int descriptor) {
  if (fails(EIO)) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

// A descriptor is closed even if close() fails.
int close(int descriptor) {
  const bool has_failed = fails(EIO);
  const int closed = static_cast<int>(::syscall(SYS_close, descriptor));
  if (has_failed) errno = EIO;
  return has_failed ? -1 : closed;
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (fails(ENOSPC)) return -1;
  return static_cast<int>(::syscall(SYS_mkdir, path, mode));
}

int rename(const char* from, const char* to) noexcept {
  if (fails(EIO)) return -1;
  return static_cast<int>(::syscall(SYS_rename, from, to));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  if (fails(EIO)) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
}
