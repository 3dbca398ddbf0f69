#include "sdk/examples/gpt2/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

namespace gpt2 {
namespace {

constexpr std::size_t kLongestBar = 24;
constexpr std::size_t kShortestBar = 6;
constexpr std::size_t kUsualColumns = 80;

std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

// Returns "0:42" or "1:02:07".
std::string clock_text(std::chrono::seconds time) {
  const auto seconds = time.count();
  if (seconds < 3600) return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string bar_text(const ProgressPoint& point, std::size_t width) {
  const std::uint64_t steps = std::max<std::uint64_t>(point.steps, 1);
  const auto filled = static_cast<std::size_t>(width * std::min(point.step, steps) / steps);
  return fmt::format("[{:-<{}}] ", std::string(filled, '#'), width);
}

}  // namespace

std::size_t columns_of(int descriptor, const char* columns_variable) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string_view text = columns_variable != nullptr ? columns_variable : "";
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  return is_number && columns > 0 ? columns : kUsualColumns;
}

std::string progress_line(const ProgressPoint& point, std::size_t columns) {
  std::vector<std::string> parts = {fmt::format("{:>5}/{}", point.step, point.steps),
                                    fmt::format("  loss {:.4f}", point.loss)};
  if (point.tokens_per_second)
    parts.push_back(fmt::format("  {} tokens/s", short_number(*point.tokens_per_second)));
  if (point.left) parts.push_back(fmt::format("  {} left", clock_text(*point.left)));
  const std::size_t room = std::max<std::size_t>(columns, 1) - 1;  // the last column would wrap
  std::string text = parts.front();
  bool is_whole = true;
  for (auto part = parts.begin() + 1; part != parts.end() && is_whole; ++part) {
    is_whole = text.size() + part->size() <= room;
    if (is_whole) text += *part;
  }
  constexpr std::size_t kFrame = 3;  // two brackets and a blank
  if (!is_whole || text.size() + kFrame + kShortestBar > room) return text;
  return bar_text(point, std::min(kLongestBar, room - text.size() - kFrame)) + text;
}

ProgressBar::ProgressBar(Kind kind, std::uint64_t steps, Clock::time_point now)
    : kind_(kind), steps_(steps), start_{now}, shown_{now} {}

double ProgressBar::rate_since(const Mark& mark, Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - mark.time).count();
  return seconds > 0 ? static_cast<double>(tokens_ - mark.tokens) / seconds : 0;
}

double ProgressBar::tokens_per_second(Clock::time_point now) const {
  return rate_since(start_, now);
}

// A log of a run of days stays readable: a line every 5 seconds at first, every minute in the end.
ProgressBar::Clock::duration ProgressBar::pause(Clock::time_point now) const {
  using std::chrono::seconds;
  if (kind_ == Kind::terminal) return seconds(1);
  return std::clamp<Clock::duration>((now - start_.time) / 20, seconds(5), seconds(60));
}

// Estimates from the steps since the first line. After a rollback none of these may be new.
// REQUIRES: a line was shown.
std::chrono::seconds ProgressBar::time_left(std::uint64_t step, Clock::time_point now) const {
  const double done = step > first_line_step_ ? static_cast<double>(step - first_line_step_) : 1.0;
  const double seconds = std::chrono::duration<double>(now - first_->time).count();
  const double left = seconds / done * static_cast<double>(steps_ - std::min(step, steps_));
  return std::chrono::seconds(static_cast<long long>(left));
}

std::string ProgressBar::update(std::uint64_t step, double loss, std::uint64_t tokens,
                                Clock::time_point now, std::size_t columns) {
  tokens_ += tokens;
  const bool is_due = !first_ || now - shown_.time >= pause(now) || step == steps_;
  if (kind_ == Kind::silent || !is_due) return {};
  ProgressPoint point{step, steps_, loss, {}, {}};
  if (!first_) {
    first_ = {now, tokens_};
    first_line_step_ = step;
  } else {
    point.tokens_per_second = rate_since(shown_, now);
    point.left = time_left(step, now);
  }
  shown_ = {now, tokens_};
  // The cursor stays at the beginning of the line, so that a line of the log overwrites the bar.
  return progress_line(point, columns) + (kind_ == Kind::terminal ? "\033[K\r" : "\n");
}

std::string ProgressBar::finish() const {
  return kind_ == Kind::terminal && first_ ? "\n" : "";
}

}  // namespace gpt2
