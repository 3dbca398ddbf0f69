// FolderLock lets one job at a time write to a folder, of saves for one. The lock is a file in it,
// held by flock() for as long as this process lives, that says who holds it. A process that was
// frozen may find after it wakes that somebody removed the file and took the folder over; so the
// file also has a token, and the holder looks whether it is still its own (check_held()) before it
// renames or removes anything. Blocks on the disk; does not wait for a lock. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::io {

class FolderLock {
 public:
  // Takes the lock file `name` of the directory, which must exist. `holder` is one line for people:
  // who holds it. `token` is one that no other process has, without white space.
  // failed_precondition when another process has it: the message says who. A file system without
  // locks is not an error: there the token alone protects.
  static Result<FolderLock> take(const std::filesystem::path& directory, std::string_view name,
                                 std::string_view holder, std::string token);

  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  // Releases it. The file stays: removing it would take it from somebody who waits for it.
  ~FolderLock();

  // failed_precondition when the folder is another's by now: the file was removed or replaced.
  Status check_held() const;
  const std::string& token() const { return token_; }

 private:
  FolderLock(std::filesystem::path path, std::string token, int descriptor)
      : path_(std::move(path)), token_(std::move(token)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  std::string token_;
  int descriptor_;  // -1 after a move
};

// "host node-a, process 4711": for the holder's line.
std::string this_process_text();

}  // namespace cox::io
