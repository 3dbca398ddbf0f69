#include "sdk/src/checkpoint/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace cox::detail {
namespace {

Status open_error(const std::filesystem::path& path, int error) {
  const std::string text =
      path.string() + ": cannot open: " + std::generic_category().message(error);
  if (error == ENOENT || error == ENOTDIR) return not_found(text);
  if (error == EMFILE || error == ENFILE) return resource_exhausted(text);
  return failed_precondition(text);
}

}  // namespace

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe that nobody writes to must not hang before it can be refused.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return open_error(path, errno);
  InputFile file(descriptor, 0);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return open_error(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return failed_precondition(path.string() + ": expected a regular file");
  }
  file.size_bytes_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_bytes_(other.size_bytes_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InputFile::read_at(std::uint64_t offset, void* out, std::uint64_t bytes) const {
  constexpr std::uint64_t kMaxPiece = std::uint64_t{1} << 30;
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got =
        ::pread(descriptor_, next, std::min(bytes, kMaxPiece), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return data_loss("cannot read: " + std::generic_category().message(errno));
    if (got == 0) {
      return data_loss("expected " + std::to_string(bytes) + " more bytes at " +
                       std::to_string(offset) + ", found the end (cut while being read)");
    }
    next += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return ok_status();
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() > max_bytes) {
    return resource_exhausted(path.string() + ": expected at most " + std::to_string(max_bytes) +
                              " bytes, found " + std::to_string(file->size_bytes()));
  }
  std::string text(file->size_bytes(), '\0');
  if (Status status = file->read_at(0, text.data(), text.size()); !status.ok()) {
    return status.with_context(path.string());
  }
  return text;
}

}  // namespace cox::detail
