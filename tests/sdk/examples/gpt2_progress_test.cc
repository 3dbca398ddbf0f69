#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "sdk/examples/gpt2/progress_bar.h"

#include <doctest/doctest.h>

namespace {

using gpt2::ProgressBar;
using std::chrono::seconds;

// Returns the number of lines that a run of so many one-second steps prints.
std::ptrdiff_t lines_of_run(ProgressBar::Kind kind, std::uint64_t steps) {
  const ProgressBar::Clock::time_point start{};
  ProgressBar bar(kind, steps, start);
  std::string all;
  for (std::uint64_t i = 1; i <= steps; ++i) all += bar.update(i, 1.0, 10, start + seconds(i), 80);
  return std::count(all.begin(), all.end(), kind == ProgressBar::Kind::terminal ? '\r' : '\n');
}

}  // namespace

TEST_SUITE("gpt2 progress") {
  TEST_CASE("a line shows how far the run is, the loss, the rate and the time that is left") {
    CHECK(gpt2::progress_line({120, 300, 2.83117, 10400, seconds(62)}, 63) ==
          "[####------]   120/300  loss 2.8312  10.4k tokens/s  1:02 left");
    CHECK(gpt2::progress_line({300, 300, 1, 2.5e6, seconds(0)}, 80) ==
          "[########################]   300/300  loss 1.0000  2.5M tokens/s  0:00 left");
    CHECK(gpt2::progress_line({0, 0, 1, 7, seconds(5)}, 200) ==
          "[------------------------]     0/0  loss 1.0000  7 tokens/s  0:05 left");
    CHECK(gpt2::progress_line({1, 2, 1, 7, seconds(3727)}, 50) ==
          "    1/2  loss 1.0000  7 tokens/s  1:02:07 left");
  }

  TEST_CASE("a line is never wider than the terminal, and says the step to the last") {
    const gpt2::ProgressPoint point{120, 300, 2.83117, 10400, seconds(62)};
    std::size_t before = 0;
    for (std::size_t columns = 11; columns <= 200; ++columns) {
      CAPTURE(columns);
      const std::string line = gpt2::progress_line(point, columns);
      CHECK(line.size() < columns);
      CHECK(line.find("120/300") != std::string::npos);
      CHECK(line.size() >= before);
      before = line.size();
    }
    for (const std::size_t columns : {0, 1, 5})
      CHECK(gpt2::progress_line(point, columns) == "  120/300");
  }

  TEST_CASE("the width is the terminal's, else what COLUMNS says, else 80") {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(terminal >= 0);
    winsize size{.ws_row = 10, .ws_col = 57, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
    CHECK(gpt2::columns_of(terminal, nullptr) == 57);
    CHECK(gpt2::columns_of(terminal, "120") == 57);
    ::close(terminal);

    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    CHECK(gpt2::columns_of(ends[1], nullptr) == 80);
    CHECK(gpt2::columns_of(ends[1], "120") == 120);
    for (const char* text : {"", "0", "-3", "12x", "99999999999999999999999"})
      CHECK(gpt2::columns_of(ends[1], text) == 80);
    ::close(ends[0]);
    ::close(ends[1]);
  }

  TEST_CASE("a log shows life every few seconds, and a long run does not fill it") {
    CHECK(lines_of_run(ProgressBar::Kind::log, 61) == 13);  // 1, 6, 11, ... 61
    const std::ptrdiff_t of_a_day = lines_of_run(ProgressBar::Kind::log, 86400);
    CHECK(of_a_day > 86400 / 60);
    CHECK(of_a_day < 86400 / 60 + 100);
    CHECK(lines_of_run(ProgressBar::Kind::terminal, 61) == 61);
    CHECK(lines_of_run(ProgressBar::Kind::silent, 61) == 0);
  }

  TEST_CASE("on a terminal the line is written over, and stays at the end") {
    const ProgressBar::Clock::time_point start{};
    ProgressBar bar(ProgressBar::Kind::terminal, 10, start);
    CHECK(bar.finish().empty());  // nothing was shown
    // The first step also measured the blocks, so no forecast uses it.
    CHECK(bar.update(1, 1.0, 300, start + seconds(60), 80).ends_with("1/10  loss 1.0000\033[K\r"));
    const std::string second = bar.update(3, 1.0, 600, start + seconds(64), 80);
    CHECK(second.ends_with("3/10  loss 1.0000  150 tokens/s  0:14 left\033[K\r"));
    CHECK(bar.finish() == "\n");
    ProgressBar log(ProgressBar::Kind::log, 10, start);
    CHECK(log.update(1, 1.0, 300, start + seconds(2), 80).ends_with("loss 1.0000\n"));
    CHECK(log.finish().empty());
  }

  TEST_CASE("the rate of the whole run counts all tokens since the start") {
    const ProgressBar::Clock::time_point start{};
    ProgressBar bar(ProgressBar::Kind::silent, 10, start);
    CHECK(bar.tokens_per_second(start) == 0);
    bar.update(1, 1.0, 300, start + seconds(1), 80);
    bar.update(2, 1.0, 300, start + seconds(2), 80);
    CHECK(bar.tokens_per_second(start + seconds(3)) == 200);
  }
}
