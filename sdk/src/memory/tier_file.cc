#include "sdk/src/memory/tier_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "sdk/src/checkpoint/file_error.h"

namespace cox::detail {
namespace {

StatusCode code_of(int error) {
  return code_of_errno(error, StatusCode::internal);
}

Status failed(const std::filesystem::path& folder, const char* doing, int error) {
  return {code_of(error), "offload folder " + folder.string() + ": " + doing + ": " +
                              std::generic_category().message(error)};
}

int open_unnamed(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    return descriptor;
  }
  std::string name = (folder / ".coxswain-tier-XXXXXX").string();  // file systems without O_TMPFILE
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

// A write beyond the limit on file sizes raises a signal that ends the process by default. While
// this object lives it only fails.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  void take_pending() const {
    const timespec now{};
    sigtimedwait(&only_, nullptr, &now);
  }

 private:
  sigset_t only_;
  sigset_t before_;
};

}  // namespace

Result<TierFile> TierFile::create(const std::filesystem::path& folder) {
  const int descriptor = open_unnamed(folder);
  if (descriptor < 0) return failed(folder, "cannot create a file in it", errno);
  return TierFile(folder, descriptor);
}

TierFile::TierFile(std::filesystem::path folder, int descriptor)
    : folder_(std::move(folder)), descriptor_(descriptor) {}

TierFile::TierFile(TierFile&& other) noexcept
    : folder_(std::move(other.folder_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

TierFile::~TierFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status TierFile::write(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const NoFileSizeSignal guard;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, static_cast<std::size_t>(bytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (error == EFBIG) guard.take_pending();
      return failed(folder_, "cannot write", error);
    }
    next += written;
    offset += written;
    bytes -= written;
  }
  return ok_status();
}

Status TierFile::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, next, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(folder_, "cannot read", errno);
    if (got == 0) {
      return data_loss("offload folder " + folder_.string() + ": expected " +
                       std::to_string(bytes) + " more bytes at offset " + std::to_string(offset) +
                       ", found the end of the file");
    }
    next += got;
    offset += got;
    bytes -= got;
  }
  return ok_status();
}

}  // namespace cox::detail
