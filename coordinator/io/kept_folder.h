// KeptFolder notices when a folder in long use was removed, renamed or replaced. Holds the folder
// open, so that no other folder can get its inode number. Blocks on the disk. One thread.
#pragma once

#include <filesystem>
#include <utility>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"

namespace cox::io {

class KeptFolder {
 public:
  // Opens the folder at the path, through links too. Errors: not_found, failed_precondition (no
  // permission), resource_exhausted (descriptors).
  static Result<KeptFolder> open(std::filesystem::path path);

  // Returns failed_precondition when the path no longer leads to the folder. The message says
  // whether nothing is there or another folder.
  Status check() const;

 private:
  KeptFolder(std::filesystem::path path, Descriptor folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}

  std::filesystem::path path_;
  Descriptor folder_;
};

}  // namespace cox::io
