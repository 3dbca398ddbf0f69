// The system's words for its errors and limits: the same in every locale, and with the name of the
// limit, so that a reader knows what to raise. Reads limits of this process; any thread.
#pragma once

#include <exception>
#include <filesystem>
#include <string>

#include "coordinator/core/status.h"

namespace cox::io {

// Returns the words for an errno: "File too large (ulimit -f)".
std::string errno_text(int error);

// Returns why no thread or process can be started now: no room for a stack (ulimit -v), a full
// group (pids.max) or a user with too many of them (ulimit -u). `root`: "/" but in tests.
std::string thread_limit_text(const std::filesystem::path& root = "/");

// Returns "out of memory", with the limit on this process where it has one.
std::string memory_limit_text();

// Returns the words that follow an exception's own, because a limit may have caused it: ": the user
// may have 40 processes and threads (ulimit -u)"; empty for every other exception.
std::string limit_behind(const std::exception& error);

}  // namespace cox::io
