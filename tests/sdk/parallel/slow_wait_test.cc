#include "sdk/src/parallel/slow_wait.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/testing/loopback.h"
#include "coordinator/transport/reduction.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::SlowWait;
using namespace cox::detail;

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

// A rank that waits in round 7, and its log.
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
    wait.look(it.begin + SlowWait::kLookEvery);  // the rank may get the news itself
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

  TEST_CASE("every wait for all ranks asks between its polls, and ends when that says so") {
    struct Left {};
    const cox::testing::LoopbackWorld world(2);
    const auto here = world.communicator(RankId(0));  // rank 1 never comes
    int polls = 0;
    const BetweenPolls until_it_has_left = [&polls] {
      if (++polls == 5) throw Left();
    };
    std::uint64_t value = 7;
    const std::span<std::uint64_t> values(&value, 1);
    const std::vector<std::function<void()>> waits = {
        [&] { static_cast<void>(gather_values(*here, value, until_it_has_left)); },
        [&] {
          static_cast<void>(reduce_values(*here, values, transport::min_u64(), until_it_has_left));
        },
        [&] {
          static_cast<void>(
              broadcast(*here, std::as_writable_bytes(values), RankId(1), until_it_has_left));
        },
        [&] { static_cast<void>(agree_on_status(*here, ok_status(), until_it_has_left)); },
        [&] {
          static_cast<void>(
              gather_rows(*here, std::vector<double>{1}, "all ranks", until_it_has_left));
        },
    };
    for (const auto& wait : waits) {
      polls = 0;
      CHECK_THROWS_AS(wait(), Left);
      CHECK(polls == 5);
      CHECK(value == 7);  // others may still write, but this value stays
    }
  }

  TEST_CASE("a save may take as long as the disk does: the limit ends no wait for it") {
    Waiting it;
    it.limit = 5;
    it.marks = {mark(0, Activity::saving, 60), mark(2, Activity::waiting, 60)};
    SlowWait wait = it.wait();
    for (int second = 1; second < 90; ++second) wait.look(it.begin + std::chrono::seconds(second));
    CHECK(wait.is_beyond_limit());
  }
}
