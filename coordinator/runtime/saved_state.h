// The coordinator's state as a file beside the training state: the newest plan, the history and the
// states of policies. The file is written whole or not at all. refit() in decide/control_state.h
// fits a loaded state to another start of the job. Saving and loading block on the disk, so keep
// both off the step path; any thread may call them. Never throws.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/decide/decide.h"

namespace cox::runtime {

// Returns the bytes of the file, for the writer of a save. Returns resource_exhausted if the bytes
// are too many.
Result<std::string> control_state_file(const ControlState& state);

// Loads a state. Errors: not_found if there is none; data_loss if the file is no saved state, torn
// or damaged; failed_precondition if its version is another, or the path is a link or no regular
// file.
Result<ControlState> load_control_state(const std::filesystem::path& path);

// Parses the bytes of such a file. Pure; the errors of load_control_state().
Result<ControlState> read_control_state(std::string_view file);

}  // namespace cox::runtime
