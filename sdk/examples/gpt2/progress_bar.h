// The line that tells a person how training goes: a bar, loss, tokens a second, time left. On a
// terminal it rewrites itself and fits the terminal's width; in a log, and so under mpiexec, it
// comes every few seconds. Time, width and output belong to the caller, who prints what is
// returned.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace gpt2 {

// Returns how many columns the terminal behind `descriptor` has. Where it is no terminal: what
// `columns_variable` (the environment's COLUMNS, or null) says, or else 80.
std::size_t columns_of(int descriptor, const char* columns_variable);

struct ProgressPoint {
  std::uint64_t step = 0;   // done
  std::uint64_t steps = 0;  // in total
  double loss = 0;
  // Nothing before the second line: the first step takes longer than those that follow.
  std::optional<double> tokens_per_second;
  std::optional<std::chrono::seconds> left;
};

// Returns "[######----]  120/300  loss 2.8312  10.4k tokens/s  0:42 left" in less than `columns`.
// Where that is too narrow the bar becomes shorter, then the bar and the last parts are left out;
// the step stays. Pure.
std::string progress_line(const ProgressPoint& point, std::size_t columns);

class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Kind { terminal, log, silent };

  ProgressBar(Kind kind, std::uint64_t steps, Clock::time_point now);

  // Takes in that `step` steps are done, and returns what to print now: nothing where the last line
  // is young. A line comes every second on a terminal; in a log every 5 seconds, and less often the
  // longer the run has lasted. The rate is the one since the line before, so a slow rank is seen.
  std::string update(std::uint64_t step, double loss, std::uint64_t tokens, Clock::time_point now,
                     std::size_t columns);
  // Returns what leaves the last line standing.
  std::string finish() const;

  double tokens_per_second(Clock::time_point now) const;  // since the start

 private:
  // How far the run was at some time.
  struct Mark {
    Clock::time_point time;
    std::uint64_t tokens = 0;
  };
  double rate_since(const Mark& mark, Clock::time_point now) const;
  std::chrono::seconds time_left(std::uint64_t step, Clock::time_point now) const;
  Clock::duration pause(Clock::time_point now) const;

  Kind kind_;
  std::uint64_t steps_;
  std::uint64_t tokens_ = 0;
  Mark start_;
  std::optional<Mark> first_;  // when the first line was shown
  std::uint64_t first_line_step_ = 0;
  Mark shown_;
};

}  // namespace gpt2
