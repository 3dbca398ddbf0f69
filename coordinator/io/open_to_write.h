// The one place that opens files for writing; tests/layering/writers.py refuses others. A link in
// the last component of a path is refused and never followed, so that a link in place of a file of
// ours cannot lead a write elsewhere. Folders may be links. Each function returns no descriptor on
// failure and leaves the reason in errno. Blocks on the disk; any thread.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "coordinator/io/descriptor.h"

namespace cox::io {

// Creates a file, which is open for reading and for writing at its end. EEXIST where the name is
// taken, by a link too.
Descriptor create_new(const std::filesystem::path& path, mode_t mode = 0666);

// Opens a file that is there, for reading and for writing at its end. ELOOP for a link. Does not
// wait for the other end of a pipe, which the caller refuses.
Descriptor open_existing(const std::filesystem::path& path);

// Creates a file in the folder that has no name and ends with its descriptor.
Descriptor create_unnamed(const std::filesystem::path& folder);

// A new file beside another one, whose place it takes by a rename.
struct TemporaryFile {
  Descriptor file;
  std::filesystem::path path;
};
// Creates ".NAME.tmp-PROCESS-NUMBER" in the folder of `target`. EEXIST where too many are left.
TemporaryFile create_beside(const std::filesystem::path& target, mode_t mode = 0666);
// Returns whether create_beside() makes such names.
bool is_temporary_name(std::string_view name);

// Opens an empty file `name` in an open folder, in place of one that has the name already. Returns
// its descriptor, or -1. Inline for a forked process that can look no function up (death_watch.h).
inline int create_anew_at(int folder, const char* name) {
  ::unlinkat(folder, name, 0);
  return ::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
}

}  // namespace cox::io
