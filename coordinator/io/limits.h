// Texts for the system's errors and limits: the same in every locale, and with the limit's name, so
// that a reader knows which limit to raise. Reads limits of this process; any thread.
#pragma once

#include <exception>
#include <filesystem>
#include <string>

#include "coordinator/core/status.h"

namespace cox::io {

// Returns the text for an errno: "File too large (ulimit -f)".
std::string errno_text(int error);

// Returns why no thread or process can start now: no room for a stack (ulimit -v), a full group
// (pids.max), or too many processes of the user (ulimit -u). `root` is "/" except in tests.
std::string thread_limit_text(const std::filesystem::path& root = "/");

// Returns "Cannot allocate memory", with this process's limit if there is one.
std::string memory_limit_text();

// Returns an addition to an exception's text if a limit may be the cause: ": the user may have 40
// processes and threads (ulimit -u)". Empty for every other exception.
std::string limit_behind(const std::exception& error);

}  // namespace cox::io
