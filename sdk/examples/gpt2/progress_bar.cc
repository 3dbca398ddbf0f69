#include "sdk/examples/gpt2/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace gpt2 {
namespace {

constexpr std::size_t kBarWidth = 28;

std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string progress_line(const ProgressPoint& point, std::size_t bar_width) {
  const std::uint64_t steps = std::max<std::uint64_t>(point.steps, 1);
  const auto filled = static_cast<std::size_t>(bar_width * std::min(point.step, steps) / steps);
  return fmt::format("[{:-<{}}] {:>5}/{}  loss {:.4f}  {} tokens/s  {}:{:02} left",
                     std::string(filled, '#'), bar_width, point.step, point.steps, point.loss,
                     short_number(point.tokens_per_second), point.left.count() / 60,
                     point.left.count() % 60);
}

ProgressBar::ProgressBar(Kind kind, std::uint64_t first_step, std::uint64_t steps,
                         Clock::time_point now)
    : kind_(kind), first_step_(first_step), steps_(steps), start_{now}, shown_{now} {}

double ProgressBar::rate_since(const Mark& mark, Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - mark.time).count();
  return seconds > 0 ? static_cast<double>(tokens_ - mark.tokens) / seconds : 0;
}

double ProgressBar::tokens_per_second(Clock::time_point now) const {
  return rate_since(start_, now);
}

void ProgressBar::update(std::uint64_t step, double loss, std::uint64_t tokens,
                         Clock::time_point now) {
  tokens_ += tokens;
  const auto pause = std::chrono::seconds(kind_ == Kind::terminal ? 1 : 10);
  const bool is_due = is_first_ || now - shown_.time >= pause || step == steps_;
  if (kind_ == Kind::silent || !is_due) return;
  is_first_ = false;
  const double done = static_cast<double>(step > first_step_ ? step - first_step_ : 1);
  const double seconds = std::chrono::duration<double>(now - start_.time).count();
  const double left = seconds / done * static_cast<double>(steps_ - std::min(step, steps_));
  const ProgressPoint point{step, steps_, loss, rate_since(shown_, now),
                            std::chrono::seconds(static_cast<long long>(left))};
  shown_ = {now, tokens_};
  // The cursor waits at the beginning of the line, so that a line of the log overwrites the bar.
  std::printf("%s%s", progress_line(point, kBarWidth).c_str(),
              kind_ == Kind::terminal ? "\033[K\r" : "\n");
  std::fflush(stdout);
}

void ProgressBar::finish() {
  if (kind_ == Kind::terminal) std::printf("\n");
}

}  // namespace gpt2
