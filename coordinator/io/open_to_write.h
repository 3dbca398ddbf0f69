// The one place that opens files for writing; tests/layering/writers.py refuses others. A link as
// the last component of a path is refused, so that a link in place of one of Coxswain's files
// cannot redirect a write. Folders may be links. On failure, each function returns no descriptor
// and sets errno. Blocks on the disk; any thread.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "coordinator/io/descriptor.h"

namespace cox::io {

// Creates a file, open for reading and appending. Fails with EEXIST if the name is taken, also by a
// link.
Descriptor create_new(const std::filesystem::path& path, mode_t mode = 0666);

// Opens an existing file for reading and appending. Fails with ELOOP for a link. Does not wait for
// the other end of a pipe; the caller must refuse pipes.
Descriptor open_existing(const std::filesystem::path& path);

// Creates a file without a name in the folder. The file ends with its descriptor.
Descriptor create_unnamed(const std::filesystem::path& folder);

// TemporaryFile is a new file beside a target. A rename puts the file in the target's place.
struct TemporaryFile {
  Descriptor file;
  std::filesystem::path path;
};
// Creates ".NAME.tmp-PROCESS-NUMBER" in the folder of `target`. Fails with EEXIST if too many such
// files are left.
TemporaryFile create_beside(const std::filesystem::path& target, mode_t mode = 0666);
// Returns whether the name has the form of create_beside().
bool is_temporary_name(std::string_view name);

// Replaces file `name` in an open folder with an empty one. Returns the descriptor, or -1. Inline
// for a forked process that cannot look up functions (death_watch.h).
inline int create_anew_at(int folder, const char* name) {
  ::unlinkat(folder, name, 0);
  return ::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
}

}  // namespace cox::io
