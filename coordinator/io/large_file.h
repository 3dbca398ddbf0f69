// LargeFile writes a file of many megabytes at the speed of the disk, whole or not at all (an
// AtomicFile). The caller fills one buffer while a thread writes the other, past the page cache. A
// copy through the cache would cost a save more processor time than all other work. Owned by the
// file's writer; one thread calls all functions. Blocks on the disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "coordinator/core/status.h"

namespace cox::io {

class LargeFile {
 public:
  // Creates the file. Errors: those of AtomicFile::create(), and resource_exhausted without memory
  // for the buffers.
  static Result<LargeFile> create(const std::filesystem::path& target);
  LargeFile(LargeFile&&) noexcept;
  ~LargeFile();

  // Copies the bytes. Errors: those of AtomicFile::write(), for these or earlier bytes.
  Status write(std::span<const std::byte> bytes);
  // Makes the file durable under its name. REQUIRES: as AtomicFile::commit().
  Status commit();

 private:
  struct Parts;
  explicit LargeFile(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cox::io
