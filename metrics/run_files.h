// The files of one rank in a run directory: opening them safely beside what is already there,
// and repairing a torn end. Used by RunStoreWriter; blocks on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox::metrics {

// The run that a rank's folder holds already.
struct ExistingRun {
  std::string name;    // as run.json has it; empty when that is missing or torn
  double started = 0;  // 0 when unknown
  double wall_time = 0;
  std::uint64_t steps = 0;  // whole lines in steps.jsonl
};

// nullopt when the folder holds no run.
Result<std::optional<ExistingRun>> look_at_run(const std::filesystem::path& folder);

// Cuts a torn last line, then the newest rows whose step is >= `resume_step`. Returns the rows
// left.
Result<std::uint64_t> trim_steps(const std::filesystem::path& steps_file,
                                 std::optional<StepId> resume_step);

// Appends to one file; keeps no buffer of its own.
class AppendFile {
 public:
  static Result<AppendFile> open(const std::filesystem::path& file);
  AppendFile(AppendFile&& other) noexcept : descriptor_(other.descriptor_) {
    other.descriptor_ = -1;
  }
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile();

  // All of `text`, or resource_exhausted or internal with nothing but whole lines left in the file.
  Status append(std::string_view text);

 private:
  explicit AppendFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace cox::metrics
