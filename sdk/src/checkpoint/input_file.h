// A regular file opened for reading, with the size it had then. Reads that fall short are errors,
// so a file that is cut while it is read gives a message and no undefined memory. Blocks on the
// disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "coordinator/core/status.h"

namespace cox::detail {

class InputFile {
 public:
  // Errors: not_found, failed_precondition (no permission, or not a regular file).
  static Result<InputFile> open(const std::filesystem::path& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  std::uint64_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return descriptor_; }

  // Fills `bytes` bytes at `out` from `offset`, or fails with data_loss.
  Status read_at(std::uint64_t offset, void* out, std::uint64_t bytes) const;

 private:
  InputFile(int descriptor, std::uint64_t size_bytes)
      : descriptor_(descriptor), size_bytes_(size_bytes) {}

  int descriptor_;  // -1 after a move
  std::uint64_t size_bytes_;
};

// The whole file as text, if it has at most `max_bytes`. Messages name the file.
Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

}  // namespace cox::detail
