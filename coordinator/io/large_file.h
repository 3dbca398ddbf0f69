// LargeFile writes a file of many megabytes at the speed of the disk, whole or not at all (an
// AtomicFile). Two buffers take turns: the caller fills one while a thread writes the other, past
// the system's memory for files. A copy through that memory takes more of a processor than all else
// that a save does. Owned by the writer of the file; one thread calls all of it. Blocks on the
// disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "coordinator/core/status.h"

namespace cox::io {

class LargeFile {
 public:
  // Errors: those of AtomicFile::create(), and resource_exhausted without memory for the buffers.
  static Result<LargeFile> create(const std::filesystem::path& target);
  LargeFile(LargeFile&&) noexcept;
  ~LargeFile();

  // Takes a copy of the bytes. Errors: those of AtomicFile::write(), of these bytes or earlier
  // ones.
  Status write(std::span<const std::byte> bytes);
  // Makes the file durable and gives it its name. REQUIRES: as AtomicFile::commit().
  Status commit();

 private:
  struct Parts;
  explicit LargeFile(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cox::io
