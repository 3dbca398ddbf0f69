// Checks the version of LibTorch. A program that loads another version than it was compiled with
// calls functions of other forms, so the program is refused before its first tensor. Pure, except
// loaded_version(), which reads LibTorch's own description. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::detail {

// Returns the version in the text of at::show_config(), "2.11.0"; empty if there is none.
std::string version_in(std::string_view libtorch_config);
// Returns the version of the library that the loader has loaded.
std::string loaded_version();

// Returns failed_precondition unless both have the same first two numbers. An empty version fits.
Status check_version(std::string_view compiled_with, std::string_view loaded);

// Compares the version of this build with loaded_version().
Status check_loaded_version();

}  // namespace cox::detail
