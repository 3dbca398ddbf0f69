// The coordinator's state as a file beside the training state: the newest plan, the history and
// what each policy remembers. Written whole or not at all (temporary file, fsync, rename).
// Restoring it at another world size is refit()'s business (core/decide.h). Blocks on the disk, so
// not for the step path; any thread. Never throws.
#pragma once

#include <filesystem>

#include "coordinator/core/decide.h"
#include "coordinator/core/status.h"

namespace cox::runtime {

// resource_exhausted when the file cannot be written; an older one then stays as it was.
Status save_control_state(const std::filesystem::path& path, const ControlState& state);

// not_found when there is none, data_loss when it is no saved state, torn or damaged,
// failed_precondition when it is one of another version.
Result<ControlState> load_control_state(const std::filesystem::path& path);

}  // namespace cox::runtime
