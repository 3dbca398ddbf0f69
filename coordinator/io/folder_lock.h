// FolderLock lets one job at a time write to a folder: of saves, or of a run. The lock is a file in
// it, held by flock() for as long as this process lives, that says who holds it. A process that was
// frozen may find after it wakes that somebody removed the file and took the folder over; so the
// file also has a token, and the holder looks whether it is still its own (check_held()) before it
// renames or removes anything. Blocks on the disk, and for a moment on a lock. One thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/status.h"
#include "coordinator/io/file_lock.h"
#include "coordinator/io/output_file.h"

namespace cox::io {

// A process that was killed holds its locks until the system has taken its memory down.
inline constexpr std::chrono::milliseconds kWhileProcessesEnd{2000};

class FolderLock {
 public:
  // Takes the lock file `name` of the directory, which must exist. `holder` is one line for people:
  // who holds it. `token` is one that no other process has, without white space.
  // failed_precondition when another process still has it after `patience`: the message says who.
  // On a file system without locks the file itself is the lock: it is removed at the end, and one
  // that is there is refused, also after a crash, until a person removes it.
  static Result<FolderLock> take(const std::filesystem::path& directory, std::string_view name,
                                 std::string_view holder, std::string token,
                                 const LockCalls& calls = system_lock_calls(),
                                 std::chrono::milliseconds patience = std::chrono::milliseconds(0));

  // Returns the lock as another process of the same job knows it, by the token that take() was
  // given: check_held() is the same, and the lock is not released by this.
  static FolderLock of_job(const std::filesystem::path& directory, std::string_view name,
                           std::string token);

  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;
  // Releases it. The file stays where the system locks it: removing it would take it from somebody
  // who waits for it.
  ~FolderLock();

  // failed_precondition when the folder is gone or another's by now: the file was removed or
  // replaced.
  Status check_held() const;
  const std::string& token() const { return token_; }

 private:
  FolderLock(std::filesystem::path path, std::string token, std::optional<OutputFile> file)
      : path_(std::move(path)), token_(std::move(token)), file_(std::move(file)) {}

  std::filesystem::path path_;
  std::string token_;
  std::optional<OutputFile> file_;  // none where another process holds it
  bool file_is_lock_ = false;       // the file system has no locks, so the file's presence is one
};

// "host node-a, process 4711": for the holder's line.
std::string this_process_text();

}  // namespace cox::io
