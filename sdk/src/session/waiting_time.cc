#include "sdk/src/session/waiting_time.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace cox::detail {

std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat) {
  const std::size_t space = schedstat.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const char* const end = schedstat.data() + schedstat.size();
  const auto read = std::from_chars(schedstat.data() + space + 1, end, value);
  // A number that the buffer cuts off would be read as another number.
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

void WaitingTime::leave_out_queueing(std::function<Seconds()> queued) {
  queued_ = std::move(queued);
  pass_over();
}

void WaitingTime::begin() {
  queued_elsewhere_ = queued_in_calls_ = waited_ = 0;
  has_called_ = false;
  is_waiting_known_ = true;
  pass_over();
}

void WaitingTime::pass_over() {
  if (queued_) queued_until_ = queued_();
}

double WaitingTime::read_queued(Phase phase, double seconds) {
  const Seconds now = queued_();
  const double passed = Seconds(now - queued_until_).count();
  queued_until_ = now;
  const double queued = std::clamp(passed, 0.0, std::max(0.0, seconds));
  (phase == Phase::communication ? queued_in_calls_ : queued_elsewhere_) += queued;
  return queued;
}

void WaitingTime::waited(std::optional<double> seconds) {
  has_called_ = true;
  is_waiting_known_ = is_waiting_known_ && seconds.has_value();
  waited_ += seconds.value_or(0);
}

// A waiting thread gives its core up and queues for it again. So within calls both times overlap,
// and the longer one counts for both.
std::optional<double> WaitingTime::seconds(double communication) const {
  if (!is_waiting_known_ || !has_called_) return std::nullopt;
  return std::min(queued_elsewhere_ + std::max(waited_, queued_in_calls_), communication);
}

}  // namespace cox::detail
