#include "sdk/examples/gpt2/progress_bar.h"

#include <algorithm>
#include <cstdio>

namespace gpt2 {
namespace {

constexpr std::size_t kBarWidth = 28;

std::string short_number(double value) {
  char text[32];
  if (value >= 1e6) {
    std::snprintf(text, sizeof(text), "%.1fM", value / 1e6);
  } else if (value >= 1e3) {
    std::snprintf(text, sizeof(text), "%.1fk", value / 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.0f", value);
  }
  return text;
}

}  // namespace

std::string progress_line(const ProgressPoint& point, std::size_t bar_width) {
  const std::uint64_t steps = std::max<std::uint64_t>(point.steps, 1);
  const auto filled = static_cast<std::size_t>(bar_width * std::min(point.step, steps) / steps);
  std::string bar(filled, '#');
  bar.resize(bar_width, '-');
  char text[160];
  std::snprintf(text, sizeof(text), "[%s] %5llu/%llu  loss %.4f  %s tokens/s  %lld:%02lld left",
                bar.c_str(), static_cast<unsigned long long>(point.step),
                static_cast<unsigned long long>(point.steps), point.loss,
                short_number(point.tokens_per_second).c_str(),
                static_cast<long long>(point.left.count() / 60),
                static_cast<long long>(point.left.count() % 60));
  return text;
}

ProgressBar::ProgressBar(Kind kind, std::uint64_t first_step, std::uint64_t steps,
                         Clock::time_point now)
    : kind_(kind), first_step_(first_step), steps_(steps), start_(now) {}

double ProgressBar::tokens_per_second(Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - start_).count();
  return seconds > 0 ? static_cast<double>(tokens_) / seconds : 0;
}

void ProgressBar::update(std::uint64_t step, double loss, std::uint64_t tokens,
                         Clock::time_point now) {
  tokens_ += tokens;
  const auto pause =
      kind_ == Kind::terminal ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000);
  const bool is_due = now - shown_ >= pause || step == steps_;
  if (kind_ == Kind::silent || !is_due) return;
  shown_ = now;
  const double done = static_cast<double>(step > first_step_ ? step - first_step_ : 1);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double left = seconds / done * static_cast<double>(steps_ - std::min(step, steps_));
  const ProgressPoint point{step, steps_, loss, tokens_per_second(now),
                            std::chrono::seconds(static_cast<long long>(left))};
  const bool rewrites = kind_ == Kind::terminal;
  std::printf("%s%s%s", rewrites ? "\r" : "", progress_line(point, kBarWidth).c_str(),
              rewrites ? "\033[K" : "\n");
  std::fflush(stdout);
}

void ProgressBar::finish() {
  if (kind_ == Kind::terminal) std::printf("\n");
}

}  // namespace gpt2
