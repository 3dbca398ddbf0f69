#include "coordinator/io/limits.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/descriptor.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

// Returns up to 4 KiB of a kernel file, without the final line break.
std::string kernel_text(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> bytes{};
  const ssize_t size = file.is_open() ? ::read(file.number(), bytes.data(), bytes.size()) : 0;
  std::string text(bytes.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::optional<rlim_t> limit_on(__rlimit_resource resource) {
  rlimit found{};
  if (::getrlimit(resource, &found) != 0 || found.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return found.rlim_cur;
}

bool has_room_for_stack() {
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) != 0) return true;
  std::size_t bytes = 0;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  void* stack = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) return false;
  ::munmap(stack, bytes);
  return true;
}

// Returns the group's limit of processes if the group is full.
std::optional<std::uint64_t> most_of_full_group(const fs::path& group) {
  const auto most = parsed_number<std::uint64_t>(kernel_text(group / "pids.max"));
  const auto now = parsed_number<std::uint64_t>(kernel_text(group / "pids.current"));
  return most && now && *now >= *most ? most : std::nullopt;
}

// Returns the limit of the first full group among this process's group and its parents. A line of
// /proc/self/cgroup is "0::/a/b" or "8:pids:/a/b".
std::optional<std::uint64_t> most_of_full_groups(const fs::path& root) {
  const std::string text = kernel_text(root / "proc/self/cgroup");
  for (std::string_view left = text; !left.empty();) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    const bool is_old = line.find(":pids:/") != std::string_view::npos;
    if (!is_old && !line.starts_with("0::/")) continue;
    const fs::path mount = root / "sys/fs/cgroup" / (is_old ? "pids" : "");
    fs::path inside(line.substr(line.find('/') + 1));
    for (;; inside = inside.parent_path()) {
      if (const auto most = most_of_full_group(mount / inside)) return most;
      if (inside.empty()) break;
    }
  }
  return std::nullopt;
}

std::string address_space_limit() {
  const auto most = limit_on(RLIMIT_AS);
  return most ? concat("; its address space may have ", bytes_text(*most), " (ulimit -v)") : "";
}

const char* limit_behind(int error) {
  switch (error) {
    case EFBIG:
      return " (ulimit -f)";
    case EMFILE:
      return " (ulimit -n)";
    case ENFILE:
      return " (fs.file-max)";
    default:
      return "";
  }
}

}  // namespace

std::string errno_text(int error) {
  if (error == ENOMEM) return memory_limit_text();
  const char* words = ::strerrordesc_np(error);
  return words == nullptr ? concat("error ", error) : concat(words, limit_behind(error));
}

std::string thread_limit_text(const fs::path& root) {
  if (!has_room_for_stack()) return concat("no room for its stack: ", memory_limit_text());
  if (const auto most = most_of_full_groups(root))
    return concat("the control group has all of its ", *most, " processes and threads (pids.max)");
  if (const auto most = limit_on(RLIMIT_NPROC))
    return concat("the user may have ", *most, " processes and threads (ulimit -u)");
  return "the system allows no more processes and threads (kernel.threads-max)";
}

std::string memory_limit_text() {
  return concat("Cannot allocate memory", address_space_limit());
}

// LibTorch's allocator has no exception type of its own for missing memory.
std::string limit_behind(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return concat(": ", memory_limit_text());
  const std::string_view what = error.what();
  if (what.find("can't allocate memory") != what.npos) return address_space_limit();
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return {};
  const std::error_condition reason = system->code().default_error_condition();
  if (reason.category() != std::generic_category()) return {};
  return reason.value() == EAGAIN ? concat(": ", thread_limit_text())
                                  : limit_behind(reason.value());
}

}  // namespace cox::io
