// The coordinator's state as a file beside the training state: the newest plan, the history and
// what each policy remembers. The file is written whole or not at all. refit() in
// decide/control_state.h fits what was loaded to another start of the job. Saving and loading block
// on the disk, so they are not for the step path; any thread may call them. They never throw.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/decide/decide.h"

namespace cox::runtime {

// Returns the bytes of the file, for whoever writes the save. resource_exhausted where they are too
// many.
Result<std::string> control_state_file(const ControlState& state);

// not_found when there is none, data_loss when it is no saved state, torn or damaged,
// failed_precondition when it is one of another version, a link or no regular file.
Result<ControlState> load_control_state(const std::filesystem::path& path);

// Reads the bytes of such a file. Pure; the errors of load_control_state().
Result<ControlState> read_control_state(std::string_view file);

}  // namespace cox::runtime
