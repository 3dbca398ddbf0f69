// TierFile: a file without a name in a folder of the user's, for bytes that leave memory for a
// while. The system removes it when the process ends, however that happens. Reads and writes of
// different places may run on different threads at once. They go through the system's page cache.
#pragma once

#include <cstdint>
#include <filesystem>

#include "coordinator/core/status.h"

namespace cox::detail {

class TierFile {
 public:
  // not_found for a missing folder; failed_precondition, resource_exhausted or internal for one in
  // which no file can be made.
  static Result<TierFile> create(const std::filesystem::path& folder);
  TierFile(TierFile&& other) noexcept;
  TierFile& operator=(TierFile&&) = delete;
  ~TierFile();

  // Block until done. A full disk or a limit on file sizes is resource_exhausted, and no signal.
  Status write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  // data_loss when the file is shorter than that.
  Status read(void* data, std::int64_t bytes, std::int64_t offset) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  TierFile(std::filesystem::path folder, int descriptor);

  std::filesystem::path folder_;
  int descriptor_;
};

}  // namespace cox::detail
