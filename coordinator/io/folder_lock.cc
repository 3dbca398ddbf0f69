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

// A file system that has no locks leaves the file of a killed job behind, which nobody can tell
// from that of a live one.
Status held_elsewhere(const fs::path& path, const std::string& holder, FileLocking locking) {
  const std::string_view doubt =
      locking == FileLocking::none
          ? " (its file system has no locks, so a job that was killed holds it still)"
          : "";
  return failed_precondition(path.parent_path().string(),
                             ": expected a folder that no other job writes to, found it held by ",
                             holder, doubt,
                             "; wait for that job, end it, or use another folder (only if that job "
                             "is surely gone: remove ",
                             path.string(), ")");
}

bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS ||
         error == EINVAL;
}

int lock_whole_file(int descriptor) {
  return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

// Of the open file, not of the process: it is kept when another descriptor of the file is closed.
int lock_record(int descriptor) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &whole) == 0) return 0;
  return errno == EACCES ? EWOULDBLOCK : errno;
}

struct LockFile {
  Descriptor descriptor;
  bool is_new = false;  // this call made it
};

Result<LockFile> open_lock(const fs::path& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor made(::open(path.c_str(), kFlags | O_EXCL, 0666));
  if (made.is_open()) return LockFile{std::move(made), true};
  Descriptor found(errno == EEXIST ? ::open(path.c_str(), kFlags, 0666) : -1);
  if (found.is_open()) return LockFile{std::move(found), false};
  return errno_status(errno, path.string() + ": cannot open it");
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

LockCalls system_lock_calls() {
  return {lock_whole_file, lock_record};
}

Result<FileLocking> lock_file(int descriptor, const LockCalls& calls) {
  int error = calls.whole_file(descriptor);
  if (has_no_locks(error)) error = calls.record(descriptor);
  if (error == 0) return FileLocking::locked;
  if (error == EWOULDBLOCK) return FileLocking::held_elsewhere;
  if (has_no_locks(error)) return FileLocking::none;
  return errno_status(error, "cannot lock it");
}

Result<FolderLock> FolderLock::take(const fs::path& directory, std::string_view name,
                                    std::string_view holder, std::string token,
                                    const LockCalls& calls) {
  const fs::path path = directory / name;
  auto file = open_lock(path);
  if (!file.ok()) return file.status();
  FolderLock lock(path, std::move(token), std::move(file->descriptor));
  const int opened = lock.file_.number();
  struct stat info {};
  if (::fstat(opened, &info) != 0 || !S_ISREG(info.st_mode))
    return failed_precondition(path.string(), ": expected a regular file; remove what is there");
  const auto locking = lock_file(opened, calls);
  if (!locking.ok()) return locking.status().with_context(path.string());
  const bool is_free =
      *locking == FileLocking::none ? file->is_new : *locking == FileLocking::locked;
  if (!is_free) return held_elsewhere(path, holder_in(content_of_lock(opened)), *locking);
  // It may have been removed between open() and the lock: then somebody else makes a new one.
  if (!is_same_file(opened, path))
    return held_elsewhere(path, "a job that starts just now", *locking);
  lock.file_is_lock_ = *locking == FileLocking::none;
  const std::string content = concat(lock.token_, "\n", holder, "\n");
  if (Status written = write_holder(opened, path, content); !written.ok()) return written;
  return lock;
}

FolderLock FolderLock::of_job(const fs::path& directory, std::string_view name, std::string token) {
  return {directory / name, std::move(token), Descriptor()};
}

FolderLock::~FolderLock() {
  const bool is_ours = file_is_lock_ && file_.is_open() && is_same_file(file_.number(), path_);
  if (is_ours) ::unlink(path_.c_str());
}

Status FolderLock::check_held() const {
  const Descriptor now(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const std::string content = content_of_lock(now.number());
  const std::string holder = now.is_open() ? holder_in(content) : "nobody";
  const bool is_same = !file_.is_open() || is_same_file(file_.number(), path_);
  if (is_same && content.starts_with(token_ + "\n")) return ok_status();
  return failed_precondition(path_.parent_path().string(),
                             ": expected to hold it still, found it held by ", holder,
                             " since this job was away; nothing in it was changed");
}

std::string this_process_text() {
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  return concat("host ", host.data(), ", process ", ::getpid());
}

}  // namespace cox::io
