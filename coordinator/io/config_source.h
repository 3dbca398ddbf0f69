// Reads a job's Config from all its sources, in this order: the program, a file, the environment,
// flags. Runs once on every rank at start-up, before any thread starts; reads one file.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"

namespace cox::io {

struct LoadedConfig {
  Config config;
  std::vector<std::string> rest;  // arguments that load_config() does not know, in order
  // True if the file, the environment or a flag sets http.port, or the program sets a port other
  // than the default.
  bool sets_port = false;
};

// Returns the validated configuration with absolute paths. `base` holds the defaults and the
// program's own overridable values; an entry in policy_modes declares a custom policy. Returns
// not_found when the file cannot be read, and invalid_argument with the place of every other error.
// Returns failed_precondition for a relative path if the working directory no longer exists.
Result<LoadedConfig> load_config(Config base, std::span<const std::string> environment,
                                 std::span<const std::string> arguments);

// Returns the text of a configuration file of at most 1 MiB. Errors: those of read_file(), after
// "config: ".
Result<std::string> read_config_file(const std::filesystem::path& path);

}  // namespace cox::io
