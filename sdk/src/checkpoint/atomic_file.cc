#include "sdk/src/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "sdk/src/checkpoint/file_error.h"

namespace cox::detail {
namespace {

constexpr int kNameAttempts = 1000;

StatusCode code_of(int error) {
  return code_of_errno(error, StatusCode::unavailable);
}

Status error_status(const std::filesystem::path& target, const std::string& doing, int error) {
  return {code_of(error), target.string() + ": " + doing + ": " +
                              std::generic_category().message(error) +
                              "; a file that was there before is unchanged"};
}

std::filesystem::path folder_of(const std::filesystem::path& target) {
  return target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
}

int sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  ::close(descriptor);
  return error;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& target) {
  const std::string stem = "." + target.filename().string() + ".tmp-" + std::to_string(::getpid());
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    const std::filesystem::path temporary =
        folder_of(target) / (stem + "-" + std::to_string(attempt));
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) return AtomicFile(target, temporary, descriptor);
    if (errno != EEXIST) return error_status(target, "cannot create a file in its folder", errno);
  }
  return resource_exhausted(target.string() + ": too many temporary files \"" + stem +
                            "-*\" beside it; remove them");
}

AtomicFile::AtomicFile(std::filesystem::path target, std::filesystem::path temporary,
                       int descriptor)
    : target_(std::move(target)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::fail(const std::string& doing, int error) const {
  return error_status(target_, doing, error);
}

Status AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kMaxPiece = std::size_t{1} << 30;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, kMaxPiece));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail("cannot write", errno);
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return ok_status();
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) return fail("cannot sync", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) return fail("cannot close", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return fail("cannot rename to it", errno);
  temporary_.clear();
  if (const int error = sync_folder(folder_of(target_)); error != 0) {
    return {code_of(error), target_.string() + ": written, but its folder cannot be synced: " +
                                std::generic_category().message(error)};
  }
  return ok_status();
}

}  // namespace cox::detail
