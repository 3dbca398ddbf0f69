#include "coordinator/io/open_to_write.h"

#include <stdlib.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "coordinator/core/text.h"

namespace cox::io {
namespace {

constexpr int kAtItsEnd = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
constexpr int kNameAttempts = 1000;
constexpr std::string_view kTemporary = ".tmp-";

}  // namespace

Descriptor create_new(const std::filesystem::path& path, mode_t mode) {
  return Descriptor(::open(path.c_str(), kAtItsEnd | O_CREAT | O_EXCL, mode));
}

Descriptor open_existing(const std::filesystem::path& path) {
  return Descriptor(::open(path.c_str(), kAtItsEnd | O_NONBLOCK));
}

Descriptor create_unnamed(const std::filesystem::path& folder) {
  Descriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.is_open() || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string name = (folder / ".coxswain-tier-XXXXXX").string();  // without O_TMPFILE
  Descriptor named(::mkostemp(name.data(), O_CLOEXEC));
  if (named.is_open()) ::unlink(name.c_str());
  return named;
}

TemporaryFile create_beside(const std::filesystem::path& target, mode_t mode) {
  const std::string stem = concat(".", target.filename().string(), kTemporary, ::getpid(), "-");
  TemporaryFile made;
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    made.path = target.parent_path() / concat(stem, attempt);
    made.file = create_new(made.path, mode);
    if (made.file.is_open() || errno != EEXIST) return made;
  }
  return made;
}

bool is_temporary_name(std::string_view name) {
  const std::size_t mark = name.rfind(kTemporary);
  if (!name.starts_with('.') || mark == std::string_view::npos) return false;
  const std::string_view numbers = name.substr(mark + kTemporary.size());
  return numbers.find('-') != std::string_view::npos &&
         numbers.find_first_not_of("0123456789-") == std::string_view::npos;
}

}  // namespace cox::io
