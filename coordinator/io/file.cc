#include "coordinator/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/io/limits.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // largest size of one system call

Status open_error(const fs::path& path, int error) {
  return errno_status(error, concat(path.string(), ": cannot open"),
                      StatusCode::failed_precondition);
}

Status cannot(const fs::path& target, const std::string& doing, int error) {
  const Status status = errno_status(error, concat(target.string(), ": ", doing));
  return {status.code(), concat(status.message(), "; an earlier file of that name is unchanged")};
}

bool is_blocks(std::string_view bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  return address % kBlockBytes == 0 && bytes.size() % kBlockBytes == 0;
}

const char* kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "another kind of file";
}

}  // namespace

StatusCode code_of_errno(int error, StatusCode otherwise) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return StatusCode::resource_exhausted;
    case ENOENT:
    case ENOTDIR:
      return StatusCode::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
      return StatusCode::failed_precondition;
    default:
      return otherwise;
  }
}

Status errno_status(int error, const std::string& doing, StatusCode otherwise) {
  return {code_of_errno(error, otherwise), concat(doing, ": ", errno_text(error))};
}

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxPiece));
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

NextBytes one_piece(std::string_view text) {
  return [text]() mutable { return Result<std::string_view>(std::exchange(text, {})); };
}

Result<AtomicFile> AtomicFile::create(const fs::path& target) {
  TemporaryFile made = create_beside(target);
  if (made.file.is_open()) return AtomicFile(target, std::move(made));
  if (errno != EEXIST) return cannot(target, "cannot create a file in its folder", errno);
  return resource_exhausted(target.string(), ": too many temporary files such as ",
                            made.path.filename().string(), " in its folder; remove these files");
}

AtomicFile::AtomicFile(fs::path target, TemporaryFile made)
    : target_(std::move(target)), temporary_(std::move(made.path)), file_(std::move(made.file)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::move(other.file_)),
      is_bypassing_(other.is_bypassing_),
      size_bytes_(other.size_bytes_) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::fail(const std::string& doing, int error) const {
  return cannot(target_, doing, error);
}

void AtomicFile::bypass_cache() {
  const int flags = ::fcntl(file_.number(), F_GETFL);
  is_bypassing_ = flags != -1 && ::fcntl(file_.number(), F_SETFL, flags | O_DIRECT) == 0;
}

void AtomicFile::use_cache() {
  if (!std::exchange(is_bypassing_, false)) return;
  const int flags = ::fcntl(file_.number(), F_GETFL);
  if (flags != -1) static_cast<void>(::fcntl(file_.number(), F_SETFL, flags & ~O_DIRECT));
}

// A file system may accept O_DIRECT and then refuse the first write.
int AtomicFile::write_bytes(std::string_view bytes) {
  if (!is_blocks(bytes)) use_cache();
  int error = write_all(file_.number(), bytes);
  if (error == EINVAL && is_bypassing_) {
    use_cache();
    const bool is_cut = ::ftruncate(file_.number(), static_cast<off_t>(size_bytes_)) == 0;
    error = is_cut ? write_all(file_.number(), bytes) : errno;
  }
  size_bytes_ += bytes.size();
  return error;
}

Status AtomicFile::write(const void* data, std::size_t bytes) {
  const int error = write_bytes({static_cast<const char*>(data), bytes});
  return error == 0 ? ok_status() : fail("cannot write", error);
}

Status AtomicFile::commit() {
  if (::fsync(file_.number()) != 0) return fail("cannot sync", errno);
  if (::close(file_.release()) != 0) return fail("cannot close", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    return fail("cannot rename the temporary file to it", errno);
  temporary_.clear();
  return sync_folder(folder_of(target_)).with_context(concat(target_.string(), ": written, but"));
}

Status replace_file(const fs::path& target, std::string_view content) {
  Result<AtomicFile> file = AtomicFile::create(target);
  if (!file.ok()) return file.status();
  const Status written = file->write(content.data(), content.size());
  return written.ok() ? file->commit() : written;
}

void remove_temporaries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const bool is_file = fs::is_regular_file(entry.symlink_status(error));
    if (is_file && is_temporary_name(entry.path().filename().string()))
      left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove(path, error);
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

Status sync_folder(const fs::path& folder) {
  const std::string doing = concat("the folder ", folder.string(), " cannot be synced");
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return errno_status(errno, doing);
  // Some file systems cannot sync folders.
  const bool is_synced = ::fsync(opened.number()) == 0 || errno == EINVAL;
  return is_synced ? ok_status() : errno_status(errno, doing);
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

Result<std::uint64_t> regular_size(int descriptor, const fs::path& path) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return open_error(path, errno);
  if (S_ISREG(info.st_mode)) return static_cast<std::uint64_t>(info.st_size);
  return failed_precondition(path.string(), ": expected a regular file, found ",
                             kind_of(info.st_mode));
}

Status found_link(const fs::path& path) {
  return failed_precondition(path.string(), ": expected a regular file, found a link");
}

Result<InputFile> InputFile::open(const fs::path& path, Links links) {
  // O_NONBLOCK: opening a pipe without a writer must not hang before the pipe is refused.
  const int follow = links == Links::refused ? O_NOFOLLOW : 0;
  InputFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | follow));
  const bool is_open = file.file_.is_open();
  if (!is_open && errno == ELOOP && links == Links::refused) return found_link(path);
  if (!is_open) return open_error(path, errno);
  const Result<std::uint64_t> size = regular_size(file.descriptor(), path);
  if (!size.ok()) return size.status();
  file.size_bytes_ = *size;
  return file;
}

Status InputFile::read_at(std::uint64_t offset, void* out, std::uint64_t bytes) const {
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const std::size_t piece = std::min<std::uint64_t>(bytes, kMaxPiece);
    const ssize_t got = ::pread(descriptor(), next, piece, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return data_loss("cannot read: ", errno_text(errno));
    if (got == 0) {
      return data_loss("expected ", bytes, " more bytes at ", offset,
                       ", found the end (cut while being read)");
    }
    next += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return ok_status();
}

Status InputFile::each_piece(std::size_t most_bytes,
                             const std::function<Status(std::string_view piece)>& take) const {
  std::string piece;
  for (std::uint64_t at = 0; at < size_bytes_; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(most_bytes, size_bytes_ - at));
    if (Status read = read_at(at, piece.data(), piece.size()); !read.ok()) return read;
    if (Status taken = take(piece); !taken.ok()) return taken;
  }
  return ok_status();
}

Result<std::string> read_file(const fs::path& path, std::uint64_t max_bytes, Links links) {
  Result<InputFile> file = InputFile::open(path, links);
  if (!file.ok()) return file.status();
  if (file->size_bytes() > max_bytes) {
    return resource_exhausted(path.string(), ": expected at most ", max_bytes, " bytes, found ",
                              file->size_bytes());
  }
  std::string text(file->size_bytes(), '\0');
  if (Status status = file->read_at(0, text.data(), text.size()); !status.ok())
    return status.with_context(path.string());
  return text;
}

}  // namespace cox::io
