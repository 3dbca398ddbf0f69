#include "coordinator/transport/shared/process_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

namespace cox::transport {
namespace {

std::uint64_t own_space() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

ProcessId this_process() {
  return {getpid(), own_space()};
}

ProcessState parse_process_state(std::string_view stat_line) {
  const std::size_t name_end = stat_line.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= stat_line.size())
    return ProcessState::unknown;
  const char letter = stat_line[name_end + 2];
  if (letter == 'T' || letter == 't') return ProcessState::stopped;
  if (letter == 'Z' || letter == 'X' || letter == 'x') return ProcessState::gone;
  return ProcessState::running;
}

ProcessState state_of(const ProcessId& process) {
  if (process.number <= 0 || process.space == 0 || process.space != own_space())
    return ProcessState::unknown;
  const std::string path = "/proc/" + std::to_string(process.number) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? ProcessState::gone : ProcessState::unknown;
  std::array<char, 512> line{};
  const ssize_t size = read(file, line.data(), line.size());
  const int error = errno;
  close(file);
  if (size < 0) return error == ESRCH ? ProcessState::gone : ProcessState::unknown;
  return parse_process_state({line.data(), static_cast<std::size_t>(size)});
}

}  // namespace cox::transport
