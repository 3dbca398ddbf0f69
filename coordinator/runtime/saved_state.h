// The coordinator's state as a file beside the training state: the newest plan, the history and
// what each policy remembers. The file is written whole or not at all. refit() in
// core/control_state.h fits what was loaded to another start of the job. Both functions block on
// the disk, so they are not for the step path; any thread may call them. They never throw.
#pragma once

#include <filesystem>

#include "coordinator/core/decide.h"
#include "coordinator/core/status.h"

namespace cox::runtime {

// Writes the state. Errors: not_found (no such folder), failed_precondition (not allowed) or
// resource_exhausted (no room); an older file then stays as it was.
Status save_control_state(const std::filesystem::path& path, const ControlState& state);

// Reads a state. Errors: not_found when there is no file, data_loss when it is not a saved state or
// is torn or damaged, failed_precondition when it is one of another version.
Result<ControlState> load_control_state(const std::filesystem::path& path);

}  // namespace cox::runtime
