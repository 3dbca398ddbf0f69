#include "coordinator/io/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/io/open_to_write.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopiedAtOnce = std::uint64_t{1} << 20;

int copy_start(int from, int to, std::uint64_t bytes) {
  std::string piece(std::min(kCopiedAtOnce, bytes), '\0');
  for (std::uint64_t at = 0; at < bytes;) {
    const std::size_t wanted = std::min<std::uint64_t>(piece.size(), bytes - at);
    const ssize_t got = ::pread(from, piece.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;  // cut during the copy
    const auto size = static_cast<std::size_t>(got);
    if (const int error = write_all(to, {piece.data(), size}); error != 0) return error;
    at += size;
  }
  return 0;
}

// The copy gets the lock before the name, so no other process finds the copy unlocked.
int lock_copy(int copy, const LockCalls& calls) {
  const auto locking = lock_file(copy, calls);
  return locking.ok() && *locking != FileLocking::held_elsewhere ? 0 : ENOLCK;
}

}  // namespace

Result<OutputFile> OutputFile::open(fs::path path, mode_t mode) {
  Descriptor file = create_new(path, mode);
  const bool is_new = file.is_open();
  if (!is_new && errno == EEXIST) file = open_existing(path);
  if (!file.is_open() && errno == ELOOP) return found_link(path);
  if (!file.is_open())
    return errno_status(errno, concat(path.string(), ": cannot be opened for writing"));
  if (const auto size = regular_size(file.number(), path); !size.ok()) return size.status();
  return OutputFile(std::move(path), std::move(file), is_new);
}

std::uint64_t OutputFile::size_bytes() const {
  struct stat info {};
  return ::fstat(descriptor(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

Result<FileLocking> OutputFile::lock(const LockCalls& calls) {
  const auto locking = lock_file(descriptor(), calls);
  if (locking.ok() && *locking == FileLocking::locked) locked_by_ = calls;
  return locking;
}

int OutputFile::append(std::string_view bytes) {
  struct stat info {};
  if (::fstat(descriptor(), &info) != 0) return errno;
  if (info.st_nlink > 1) {
    const int error = replace_by_copy(static_cast<std::uint64_t>(info.st_size));
    if (error != 0) return error;
  }
  return write_all(descriptor(), bytes);
}

int OutputFile::cut(std::uint64_t bytes) {
  struct stat info {};
  if (::fstat(descriptor(), &info) != 0) return errno;
  if (info.st_nlink > 1) return replace_by_copy(bytes);
  return ::ftruncate(descriptor(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

int OutputFile::replace_by_copy(std::uint64_t bytes) {
  struct stat info {};
  if (::fstat(descriptor(), &info) != 0) return errno;
  if (!is_in_place()) return ESTALE;  // another file has the name now
  TemporaryFile copy = create_beside(path_);
  const int target = copy.file.number();
  if (target < 0) return errno;
  int error = copy_start(descriptor(), target, bytes);
  if (error == 0 && ::fchmod(target, info.st_mode & 07777) != 0) error = errno;
  if (error == 0 && locked_by_) error = lock_copy(target, *locked_by_);
  if (error == 0 && ::fsync(target) != 0) error = errno;
  if (error == 0 && ::rename(copy.path.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(copy.path.c_str());
    return error;
  }
  file_ = std::move(copy.file);
  static_cast<void>(sync_folder(folder_of(path_)));
  return 0;
}

int OutputFile::close() {
  return ::close(file_.release()) == 0 ? 0 : errno;
}

bool OutputFile::is_in_place() const {
  return leads_to(path_, descriptor());
}

bool OutputFile::has_name() const {
  struct stat info {};
  return ::fstat(descriptor(), &info) != 0 || info.st_nlink > 0;
}

bool leads_to(const fs::path& path, int descriptor) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(descriptor, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

}  // namespace cox::io
