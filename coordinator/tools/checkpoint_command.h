// `cox checkpoint`: what lies in a folder of saves, whether it is whole, and taking over a save
// that was made or changed by hand. Reads the manifests that coordinator/io/save_folder.h
// describes.
#pragma once

#include <string>

#include "coordinator/core/status.h"

namespace cox::tools {

enum class Wholeness { whole, damaged };

// Prints a line for each save of the directory, from its manifest alone. `damaged` when one cannot
// be read.
Result<Wholeness> list_saves(const std::string& directory);
// Reads all of a save, or of all saves of a directory, and prints what is wrong. `damaged` when
// anything is.
Result<Wholeness> verify_saves(const std::string& path);
// Writes a manifest for the files that lie in the folder now.
Status seal_save(const std::string& save);

}  // namespace cox::tools
