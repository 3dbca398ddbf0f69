#include "sdk/src/session/run_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>

namespace cox::detail {

std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat) {
  const std::size_t space = schedstat.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const char* const end = schedstat.data() + schedstat.size();
  const auto read = std::from_chars(schedstat.data() + space + 1, end, value);
  // A number that the buffer cuts off is another one.
  if (read.ec != std::errc() || read.ptr == end) return std::nullopt;
  return value;
}

std::optional<RunQueue> RunQueue::of_this_thread(const std::string& proc) {
  const int file = ::open((proc + "/thread-self/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  RunQueue queue(file);
  std::array<char, 96> text{};
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  if (got <= 0 || !queued_ns_in({text.data(), static_cast<std::size_t>(got)})) return std::nullopt;
  return queue;
}

RunQueue::~RunQueue() {
  if (file_ >= 0) ::close(file_);
}

Seconds RunQueue::queued() {
  std::array<char, 96> text{};
  const ssize_t got = ::pread(file_, text.data(), text.size(), 0);
  if (got > 0)
    last_ns_ = queued_ns_in({text.data(), static_cast<std::size_t>(got)}).value_or(last_ns_);
  return Seconds(static_cast<double>(last_ns_) * 1e-9);
}

}  // namespace cox::detail
