// FolderLock lets one job at a time write to a folder of saves or of a run. The lock is a file in
// the folder, held by flock() while this process lives. The file's text names the holder. Blocks on
// the disk, and briefly on a lock. One thread.
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

// Patience for a killed process: the process holds its locks until the system has freed its memory.
inline constexpr std::chrono::milliseconds kWhileProcessesEnd{2000};

// While a process is frozen, another job may remove the file and take the folder over. So the file
// also contains a token. The holder calls check_held() before every rename and removal.
class FolderLock {
 public:
  // Locks the file `name` in the directory, which must exist. `holder` is one line for people that
  // names the holder. `token` is unique to this process and has no white space. Returns
  // failed_precondition with the holder's line if another process still holds the lock after
  // `patience`.
  //
  // On a file system without locks, the file itself is the lock. The destructor removes the file.
  // An existing file is refused, also after a crash, until a person removes it.
  static Result<FolderLock> take(const std::filesystem::path& directory, std::string_view name,
                                 std::string_view holder, std::string token,
                                 const LockCalls& calls = system_lock_calls(),
                                 std::chrono::milliseconds patience = std::chrono::milliseconds(0));

  // Returns a view of the lock for another process of the same job, which got the token from
  // take()'s caller. check_held() works the same; the destructor does not release the lock.
  static FolderLock of_job(const std::filesystem::path& directory, std::string_view name,
                           std::string token);

  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;
  // Releases the lock. On a file system with locks the file stays, because removing the file would
  // take it from a waiting process.
  ~FolderLock();

  // Returns failed_precondition when the folder is gone or belongs to another job: the lock file
  // was removed or replaced.
  Status check_held() const;
  const std::string& token() const { return token_; }

 private:
  FolderLock(std::filesystem::path path, std::string token, std::optional<OutputFile> file)
      : path_(std::move(path)), token_(std::move(token)), file_(std::move(file)) {}

  std::filesystem::path path_;
  std::string token_;
  std::optional<OutputFile> file_;  // none if another process holds the lock
  bool file_is_lock_ = false;       // the file system has no locks; the file's presence is the lock
};

// Returns "host node-a, process 4711", for the holder's line.
std::string this_process_text();

}  // namespace cox::io
