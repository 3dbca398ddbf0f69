#include "coordinator/io/folder_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/descriptor.h"
#include "coordinator/io/file.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxHolderBytes = 1024;  // bytes of the lock file that are read

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

// Without locks of the file system, the file of a killed job stays behind and looks like that of a
// live job.
Status held_elsewhere(const fs::path& path, const std::string& holder, FileLocking locking) {
  const std::string_view doubt =
      locking == FileLocking::none
          ? " (this file system has no locks, so a killed job may have left its lock file)"
          : "";
  return failed_precondition(path.parent_path().string(),
                             ": expected a folder that no other job writes to, found it held by ",
                             holder, doubt,
                             "; wait for that job, end that job, or use another folder (if you are "
                             "sure that the job is gone, remove ",
                             path.string(), ")");
}

Status write_holder(OutputFile& file, const fs::path& path, const std::string& content) {
  int error = file.cut(0);
  if (error == 0) error = file.append(content);
  if (error == 0 && ::fsync(file.descriptor()) != 0) error = errno;
  return error == 0 ? ok_status()
                    : errno_status(error, concat(path.string(), ": cannot write the lock file"));
}

}  // namespace

Result<FolderLock> FolderLock::take(const fs::path& directory, std::string_view name,
                                    std::string_view holder, std::string token,
                                    const LockCalls& calls, std::chrono::milliseconds patience) {
  const fs::path path = directory / name;
  auto file = OutputFile::open(path);
  if (!file.ok()) return file.status();
  FolderLock lock(path, std::move(token), std::move(*file));
  OutputFile& opened = *lock.file_;
  constexpr std::chrono::milliseconds kBetween{20};
  auto locking = opened.lock(calls);
  for (; locking.ok() && *locking == FileLocking::held_elsewhere && patience > kBetween;
       patience -= kBetween) {
    std::this_thread::sleep_for(kBetween);
    locking = opened.lock(calls);
  }
  if (!locking.ok()) return locking.status().with_context(path.string());
  const bool is_free =
      *locking == FileLocking::none ? opened.is_new() : *locking == FileLocking::locked;
  if (!is_free)
    return held_elsewhere(path, holder_in(content_of_lock(opened.descriptor())), *locking);
  // Another process may have removed the file between open() and the lock. A third process then
  // creates a new file.
  if (!opened.is_in_place()) return held_elsewhere(path, "a job that is starting", *locking);
  lock.file_is_lock_ = *locking == FileLocking::none;
  const std::string content = concat(lock.token_, "\n", holder, "\n");
  if (Status written = write_holder(opened, path, content); !written.ok()) return written;
  return lock;
}

FolderLock FolderLock::of_job(const fs::path& directory, std::string_view name, std::string token) {
  return {directory / name, std::move(token), std::nullopt};
}

FolderLock::~FolderLock() {
  if (file_is_lock_ && file_ && file_->is_in_place()) ::unlink(path_.c_str());
}

Status FolderLock::check_held() const {
  const fs::path folder = path_.parent_path();
  if (!is_there(folder))
    return failed_precondition(folder.string(),
                               ": expected the folder that this job writes to, found none: the "
                               "folder was removed or renamed");
  const Descriptor now(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const bool is_other_file = errno == ENOENT || errno == ELOOP;
  if (!now.is_open() && !is_other_file)
    return errno_status(errno, concat(path_.string(), ": cannot open the lock file"));
  const std::string content = content_of_lock(now.number());
  const std::string holder = now.is_open() ? holder_in(content) : "no job";
  const bool is_same = !file_ || file_->is_in_place();
  if (is_same && content.starts_with(concat(token_, "\n"))) return ok_status();
  return failed_precondition(
      folder.string(), ": expected this job to hold the folder's lock, found it held by ", holder,
      " since this job was paused or lost the lock; nothing in the folder was changed");
}

std::string this_process_text() {
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  return concat("host ", host.data(), ", process ", ::getpid());
}

}  // namespace cox::io
