// file_of_run(): where the commands of `cox` find a file, whether they are given the file itself or
// the run directory that holds it.
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

// Returns `given` itself, or the file of that name in it when it is a folder. not_found when the
// folder has none.
inline Result<RunFile> file_of_run(const std::filesystem::path& given, const char* name) {
  std::error_code error;
  if (!std::filesystem::is_directory(given, error)) return RunFile{given, io::Links::followed};
  if (io::is_there(given / name)) return RunFile{given / name, io::Links::refused};
  return not_found(given.string(), ": expected a run directory with ", name,
                   ", found none in it; give the file itself if it lies elsewhere");
}

}  // namespace cox::tools
