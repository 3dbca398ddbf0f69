// The line that tells a person how training goes: a bar, loss, tokens a second, time left. On a
// terminal it rewrites itself; in a log it prints a line now and then. Time is passed in.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpt2 {

struct ProgressPoint {
  std::uint64_t step = 0;   // done
  std::uint64_t steps = 0;  // in total
  double loss = 0;
  double tokens_per_second = 0;
  std::chrono::seconds left{0};
};

// "[######----]  120/300  loss 2.8312  10.4k tokens/s  0:42 left". Pure.
std::string progress_line(const ProgressPoint& point, std::size_t bar_width);

class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Kind { terminal, log, silent };

  ProgressBar(Kind kind, std::uint64_t first_step, std::uint64_t steps, Clock::time_point now);

  // Shows the rate since it was shown before, so that a slow rank is seen.
  void update(std::uint64_t step, double loss, std::uint64_t tokens, Clock::time_point now);
  void finish();

  double tokens_per_second(Clock::time_point now) const;  // since the start

 private:
  // How far the run was at some time.
  struct Mark {
    Clock::time_point time;
    std::uint64_t tokens = 0;
  };
  double rate_since(const Mark& mark, Clock::time_point now) const;

  Kind kind_;
  std::uint64_t first_step_;
  std::uint64_t steps_;
  std::uint64_t tokens_ = 0;
  Mark start_;
  Mark shown_;
  bool is_first_ = true;
};

}  // namespace gpt2
