// file_of_run() finds a file for the commands of `cox`, given the file itself or the run directory
// that holds the file. Blocks on the disk; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "coordinator/core/status.h"
#include "coordinator/io/file.h"

namespace cox::tools {

struct RunFile {
  std::filesystem::path path;
  io::Links links = io::Links::followed;  // refused in a run directory, whose files are our own
};

// Returns `given` itself, or the file `name` in `given` if `given` is a folder. Returns not_found
// if the folder has no such file.
inline Result<RunFile> file_of_run(const std::filesystem::path& given, const char* name) {
  std::error_code error;
  if (!std::filesystem::is_directory(given, error)) return RunFile{given, io::Links::followed};
  if (io::is_there(given / name)) return RunFile{given / name, io::Links::refused};
  return not_found(given.string(), ": expected a run directory with ", name,
                   ", found none in it; give the file itself if it lies elsewhere");
}

}  // namespace cox::tools
