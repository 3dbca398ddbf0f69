#include "sdk/src/parallel/slow_wait.h"

#include <string>
#include <vector>

#include "coxswain/error.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::SlowWait;

namespace {

RankMark mark(std::int32_t rank, Activity activity, double seconds) {
  RankMark mark;
  mark.rank = RankId(rank);
  mark.activity = activity;
  mark.round = RoundId(7);
  mark.step = StepId(7);
  mark.activity_seconds = mark.round_seconds = seconds;
  return mark;
}

// A rank that waits in round 7, and what it wrote.
struct Waiting {
  std::vector<RankMark> marks;
  std::vector<std::string> lines;
  Log log{LogLevel::warning, RankId(2),
          [this](std::string_view line) { lines.emplace_back(line); }};
  SlowWait::Clock::time_point begin{};
  double limit = 3600;

  SlowWait wait() {
    return SlowWait({log, "Reducer::average", RoundId(7), [this] { return marks; }, Seconds(limit)},
                    begin);
  }
};

}  // namespace

TEST_SUITE("slow wait") {
  TEST_CASE("a long wait is told once, with the call that waits and whom it waits for") {
    Waiting it;
    it.marks = {mark(1, Activity::backward, 31), mark(2, Activity::waiting, 30)};
    SlowWait wait = it.wait();
    for (int second = 1; second < 30; ++second) wait.look(it.begin + std::chrono::seconds(second));
    CHECK(it.lines.empty());
    wait.look(it.begin + SlowWait::kPatience);
    wait.look(it.begin + 2 * SlowWait::kPatience);
    REQUIRE(it.lines.size() == 1);
    CHECK(it.lines[0].find("Reducer::average has waited 30 s") != std::string::npos);
    CHECK(it.lines[0].find("rank 1 is in backward of step 7") != std::string::npos);
  }

  TEST_CASE("where rank 0's process is stopped, so that nobody else speaks, those who wait do") {
    Waiting it;
    it.marks = {mark(0, Activity::forward, 4), mark(2, Activity::waiting, 4)};
    SlowWait wait = it.wait();
    wait.look(it.begin + std::chrono::seconds(2));
    CHECK(it.lines.empty());
    it.marks[0].process = ProcessState::stopped;
    for (int second = 3; second < 9; ++second) wait.look(it.begin + std::chrono::seconds(second));
    REQUIRE(it.lines.size() == 1);
    CHECK(it.lines[0].find("rank 0 is in forward of step 7 for 4.0 s, its process is stopped") !=
          std::string::npos);
  }

  TEST_CASE("a rank that has left its loop before the round is an error that names it") {
    Waiting it;
    it.marks = {mark(1, Activity::finished, 9), mark(2, Activity::waiting, 1)};
    SlowWait wait = it.wait();
    wait.look(it.begin + SlowWait::kLookEvery);  // it may be about to hear of it by itself
    wait.look(it.begin + std::chrono::seconds(2));
    try {
      wait.look(it.begin + std::chrono::seconds(4));
      FAIL("expected an error");
    } catch (const Error& error) {
      CHECK(error.status().message().find("rank 1 has left its loop after step 7") !=
            std::string::npos);
    }
  }

  TEST_CASE("a rank that has left after the round is none") {
    Waiting it;
    it.marks = {mark(1, Activity::finished, 9), mark(2, Activity::waiting, 1)};
    it.marks[0].round = RoundId(8);
    SlowWait wait = it.wait();
    for (int second = 1; second < 9; ++second)
      CHECK_NOTHROW(wait.look(it.begin + std::chrono::seconds(second)));
  }

  TEST_CASE("the limit counts what was waited, not what a machine stood still") {
    Waiting it;
    it.limit = 100;
    SlowWait wait = it.wait();
    wait.look(it.begin + std::chrono::hours(5));
    CHECK_FALSE(wait.is_beyond_limit());
    for (int second = 1; second < 108; ++second) {
      wait.look(it.begin + std::chrono::hours(5) + std::chrono::seconds(second));
    }
    CHECK_FALSE(wait.is_beyond_limit());
  }
}
