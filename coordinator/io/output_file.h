// OutputFile is a file that goes on from run to run, written at its end: a journal, rows, a lock. A
// file that has other names as well (a backup by hard links, `cp -al`) is copied before it is
// changed, and the copy takes its place, so that no byte is written through to another name. Blocks
// on the disk. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"
#include "coordinator/io/file_lock.h"

namespace cox::io {

class OutputFile {
 public:
  // Opens the file, or creates it with `mode`. Never waits for the other end of a pipe. Errors:
  // not_found (no such folder), failed_precondition (no permission; a link, pipe, device or folder
  // in its place), resource_exhausted (descriptors, disk).
  static Result<OutputFile> open(std::filesystem::path path, mode_t mode = 0666);

  bool is_open() const { return file_.is_open(); }
  // Returns whether open() created it.
  bool is_new() const { return is_new_; }
  int descriptor() const { return file_.number(); }
  // Returns the size now, 0 where the system does not tell.
  std::uint64_t size_bytes() const;

  // Locks the file until it is closed; a copy that takes its place is locked as well.
  Result<FileLocking> lock(const LockCalls& calls = system_lock_calls());

  // Appends all of the bytes. Returns 0 or the errno of the call that failed; part of them may be
  // there then.
  [[nodiscard]] int append(std::string_view bytes);
  // Keeps the first `bytes` bytes, which the file has. Returns 0 or an errno.
  [[nodiscard]] int cut(std::uint64_t bytes);
  // Closes the file. Returns 0 or an errno.
  [[nodiscard]] int close();

  // Returns whether the path still leads to this file.
  bool is_in_place() const;
  // Returns whether the file has any name; one without is lost when it is closed.
  bool has_name() const;

 private:
  OutputFile(std::filesystem::path path, Descriptor file, bool is_new)
      : path_(std::move(path)), file_(std::move(file)), is_new_(is_new) {}
  int replace_by_copy(std::uint64_t bytes);

  std::filesystem::path path_;
  Descriptor file_;
  bool is_new_;
  std::optional<LockCalls> locked_by_;
};

// Returns whether the path leads to this open file or folder; a link in its last component leads
// nowhere.
bool leads_to(const std::filesystem::path& path, int descriptor);

}  // namespace cox::io
