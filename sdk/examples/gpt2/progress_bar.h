// ProgressBar formats the line that shows a person the progress of training: a bar, loss, tokens a
// second, time left. On a terminal the line overwrites the line before and fits the width. In a
// log, and so under mpiexec, a line appears every few seconds. The caller supplies time and width
// and prints the returned text.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace gpt2 {

// Returns the number of columns of the terminal behind `descriptor`. Without a terminal, returns
// the number in `columns_variable` (the environment's COLUMNS, or null), or else 80.
std::size_t columns_of(int descriptor, const char* columns_variable);

struct ProgressPoint {
  std::uint64_t step = 0;   // done
  std::uint64_t steps = 0;  // in total
  double loss = 0;
  // Empty before the second line, because the first step takes longer than later ones.
  std::optional<double> tokens_per_second;
  std::optional<std::chrono::seconds> left;
};

// Returns "[######----]  120/300  loss 2.8312  10.4k tokens/s  0:42 left" in less than `columns`
// columns. In a narrow terminal the bar becomes shorter, then the bar and the last parts are
// omitted; the step stays. Pure.
std::string progress_line(const ProgressPoint& point, std::size_t columns);

class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Kind { terminal, log, silent };

  ProgressBar(Kind kind, std::uint64_t steps, Clock::time_point now);

  // Records that `step` steps are done and returns the text to print. The text is empty if the last
  // line is recent. Lines come every second on a terminal; in a log every 5 seconds, and less often
  // the longer the run has lasted. The rate counts from the line before, so a slow rank shows.
  std::string update(std::uint64_t step, double loss, std::uint64_t tokens, Clock::time_point now,
                     std::size_t columns);
  // Returns the text that keeps the last line on the screen.
  std::string finish() const;

  double tokens_per_second(Clock::time_point now) const;  // since the start

 private:
  // Mark is the progress of the run at some time.
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
