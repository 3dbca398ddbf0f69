// FolderLock lets one job at a time write to a folder: of saves, or of a run. The lock is a file in
// it, held by flock() for as long as this process lives, that says who holds it. A process that was
// frozen may find after it wakes that somebody removed the file and took the folder over; so the
// file also has a token, and the holder looks whether it is still its own (check_held()) before it
// renames or removes anything. Blocks on the disk; does not wait for a lock. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"

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
Result<FileLocking> lock_file(int descriptor, const LockCalls& calls = system_lock_calls());

class FolderLock {
 public:
  // Takes the lock file `name` of the directory, which must exist. `holder` is one line for people:
  // who holds it. `token` is one that no other process has, without white space.
  // failed_precondition when another process has it: the message says who. On a file system without
  // locks the file itself is the lock: it is removed at the end, and one that is there is refused,
  // also after a crash, until a person removes it.
  static Result<FolderLock> take(const std::filesystem::path& directory, std::string_view name,
                                 std::string_view holder, std::string token,
                                 const LockCalls& calls = system_lock_calls());

  // Returns the lock as another process of the same job knows it, by the token that take() was
  // given: check_held() is the same, and the lock is not released by this.
  static FolderLock of_job(const std::filesystem::path& directory, std::string_view name,
                           std::string token);

  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;
  // Releases it. The file stays where the system locks it: removing it would take it from somebody
  // who waits for it.
  ~FolderLock();

  // failed_precondition when the folder is another's by now: the file was removed or replaced.
  Status check_held() const;
  const std::string& token() const { return token_; }

 private:
  FolderLock(std::filesystem::path path, std::string token, Descriptor file)
      : path_(std::move(path)), token_(std::move(token)), file_(std::move(file)) {}

  std::filesystem::path path_;
  std::string token_;
  Descriptor file_;            // none where another process holds it
  bool file_is_lock_ = false;  // the file system has no locks, so the file's presence is one
};

// "host node-a, process 4711": for the holder's line.
std::string this_process_text();

}  // namespace cox::io
