// OutputFile is a file that grows over several runs: a journal, rows, a lock. A file with further
// names (a backup by hard links, `cp -al`) is copied before the first change. The copy then takes
// the file's place, so no byte reaches another name. Blocks on the disk. One thread.
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
  // not_found (no such folder), failed_precondition (no permission; the path is a link, pipe,
  // device or folder), resource_exhausted (descriptors, disk).
  static Result<OutputFile> open(std::filesystem::path path, mode_t mode = 0666);

  bool is_open() const { return file_.is_open(); }
  // Returns whether open() created the file.
  bool is_new() const { return is_new_; }
  int descriptor() const { return file_.number(); }
  // Returns the current size, or 0 if the system reports none.
  std::uint64_t size_bytes() const;

  // Locks the file until it is closed. A copy that takes the file's place is locked too.
  Result<FileLocking> lock(const LockCalls& calls = system_lock_calls());

  // Appends all of the bytes. Returns 0 or the errno of the failed call. After an error the file
  // may have part of the bytes.
  [[nodiscard]] int append(std::string_view bytes);
  // Cuts the file to its first `bytes` bytes. Returns 0 or an errno. REQUIRES: the file is that
  // long.
  [[nodiscard]] int cut(std::uint64_t bytes);
  // Closes the file. Returns 0 or an errno.
  [[nodiscard]] int close();

  // Returns whether the path still leads to this file.
  bool is_in_place() const;
  // Returns whether the file has any name. A file without a name is lost when closed.
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

// Returns whether the path leads to this open file or folder. A link as the last component counts
// as no match.
bool leads_to(const std::filesystem::path& path, int descriptor);

}  // namespace cox::io
