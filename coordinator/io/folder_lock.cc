#include "coordinator/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxHolderBytes = 1024;  // of the file that are read

std::string content_of_lock(int descriptor) {
  std::array<char, kMaxHolderBytes> buffer{};
  const ssize_t got = ::pread(descriptor, buffer.data(), buffer.size(), 0);
  return got > 0 ? std::string(buffer.data(), static_cast<std::size_t>(got)) : std::string();
}

// The file is "TOKEN\nHOLDER\n".
std::string holder_in(const std::string& content) {
  const std::size_t line = content.find('\n');
  if (line == std::string::npos) return "another process";
  return valid_utf8(content.substr(line + 1, content.find('\n', line + 1) - line - 1));
}

Status held_elsewhere(const fs::path& path, const std::string& holder) {
  return failed_precondition(path.parent_path().string() +
                             ": expected a folder that no other job writes to, found it held by " +
                             holder +
                             "; wait for that job, end it, or use another folder (only if that job "
                             "is surely gone: remove " +
                             path.string() + ")");
}

bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

bool is_same_file(int descriptor, const fs::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(descriptor, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

Status write_holder(int descriptor, const fs::path& path, const std::string& content) {
  const bool is_written = ::ftruncate(descriptor, 0) == 0 &&
                          ::pwrite(descriptor, content.data(), content.size(), 0) ==
                              static_cast<ssize_t>(content.size()) &&
                          ::fsync(descriptor) == 0;
  return is_written ? ok_status() : errno_status(errno, path.string() + ": cannot write it");
}

}  // namespace

Result<FolderLock> FolderLock::take(const fs::path& directory, std::string_view name,
                                    std::string_view holder, std::string token) {
  const fs::path path = directory / name;
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0) return errno_status(errno, path.string() + ": cannot open it");
  FolderLock lock(path, std::move(token), descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode))
    return failed_precondition(path.string() + ": expected a regular file; remove what is there");
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && !has_no_locks(errno))
    return held_elsewhere(path, holder_in(content_of_lock(descriptor)));
  // It may have been removed between open() and flock(): then somebody else makes a new one.
  if (!is_same_file(descriptor, path)) return held_elsewhere(path, "a job that starts just now");
  const std::string content = concat(lock.token_, "\n", holder, "\n");
  if (Status written = write_holder(descriptor, path, content); !written.ok()) return written;
  return lock;
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : path_(std::move(other.path_)),
      token_(std::move(other.token_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status FolderLock::check_held() const {
  const bool is_ours =
      is_same_file(descriptor_, path_) && content_of_lock(descriptor_).starts_with(token_ + "\n");
  if (is_ours) return ok_status();
  const int now = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const std::string holder = now < 0 ? "nobody" : holder_in(content_of_lock(now));
  if (now >= 0) ::close(now);
  return failed_precondition(path_.parent_path().string() +
                             ": expected to hold it still, found it held by " + holder +
                             " since this job was away; nothing in it was changed");
}

std::string this_process_text() {
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  return concat("host ", host.data(), ", process ", ::getpid());
}

}  // namespace cox::io
