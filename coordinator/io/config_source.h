// load_config() reads a job's Config from all its sources in their order: what the program sets,
// file, environment, flags. Runs once, on every rank at start-up, before any thread; reads one
// file.
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
  std::vector<std::string> rest;  // arguments that are not ours, in order
  // Whether file, environment or flags set http.port, to whatever value, or the program sets
  // another one than the default.
  bool sets_port = false;
};

// `base` holds defaults and what the program itself wants to be overridable (a custom policy is
// known by its entry in policy_modes). The result is validated, and its paths are absolute.
// not_found when the file cannot be read; invalid_argument with its place for everything that is
// wrong inside; failed_precondition for a relative path from a working directory that is gone.
Result<LoadedConfig> load_config(Config base, std::span<const std::string> environment,
                                 std::span<const std::string> arguments);

// Reads the text of a configuration file of at most 1 MiB. The errors of read_file(), after
// "config: ".
Result<std::string> read_config_file(const std::filesystem::path& path);

}  // namespace cox::io
