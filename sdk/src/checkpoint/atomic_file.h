// A file that appears whole or not at all: bytes go to a temporary file in the same folder,
// commit() syncs it and renames it over the target, then syncs the folder. Without a commit the
// destructor removes the temporary file and whatever the target held before is untouched. Owned by
// one thread; blocks on the disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "coordinator/core/status.h"

namespace cox::detail {

class AtomicFile {
 public:
  // Errors: not_found (no such folder), failed_precondition (may not write there).
  static Result<AtomicFile> create(const std::filesystem::path& target);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  // Errors: resource_exhausted when disk, quota or file-size limit is used up.
  Status write(const void* data, std::size_t bytes);
  // At most once; after an error of write() it must not be called.
  Status commit();

 private:
  AtomicFile(std::filesystem::path target, std::filesystem::path temporary, int descriptor);
  Status fail(const std::string& doing, int error) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once there is nothing to remove
  int descriptor_;                   // -1 once closed
};

}  // namespace cox::detail
