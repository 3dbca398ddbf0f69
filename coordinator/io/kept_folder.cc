#include "coordinator/io/kept_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"

namespace cox::io {

Result<KeptFolder> KeptFolder::open(std::filesystem::path path) {
  Descriptor folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return errno_status(errno, concat(path.string(), ": cannot be opened"));
  return KeptFolder(std::move(path), std::move(folder));
}

Status KeptFolder::check() const {
  struct stat kept {};
  struct stat named {};
  const std::string expected =
      concat(path_.string(), ": expected the folder that this job began to write to, found ");
  if (::stat(path_.c_str(), &named) != 0)
    return failed_precondition(expected, "none: the folder was removed or renamed");
  const bool is_same = ::fstat(folder_.number(), &kept) == 0 && kept.st_dev == named.st_dev &&
                       kept.st_ino == named.st_ino;
  return is_same ? ok_status()
                 : failed_precondition(expected,
                                       "another folder of the same name: the first was replaced");
}

}  // namespace cox::io
