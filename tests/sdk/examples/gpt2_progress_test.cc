#include "sdk/examples/gpt2/progress_bar.h"

#include <doctest/doctest.h>

TEST_SUITE("gpt2 progress") {
  TEST_CASE("a line shows how far the run is, the loss, the rate and the time that is left") {
    CHECK(gpt2::progress_line({120, 300, 2.83117, 10400, std::chrono::seconds(62)}, 10) ==
          "[####------]   120/300  loss 2.8312  10.4k tokens/s  1:02 left");
    CHECK(gpt2::progress_line({300, 300, 1, 2.5e6, std::chrono::seconds(0)}, 4) ==
          "[####]   300/300  loss 1.0000  2.5M tokens/s  0:00 left");
    CHECK(gpt2::progress_line({0, 0, 1, 7, std::chrono::seconds(5)}, 4) ==
          "[----]     0/0  loss 1.0000  7 tokens/s  0:05 left");
  }

  TEST_CASE("the rate of the whole run counts all tokens since the start") {
    const gpt2::ProgressBar::Clock::time_point start{};
    gpt2::ProgressBar bar(gpt2::ProgressBar::Kind::silent, 0, 10, start);
    CHECK(bar.tokens_per_second(start) == 0);
    bar.update(1, 1.0, 300, start + std::chrono::seconds(1));
    bar.update(2, 1.0, 300, start + std::chrono::seconds(2));
    CHECK(bar.tokens_per_second(start + std::chrono::seconds(3)) == 200);
  }
}
