// The coordinator's messages about ranks that keep others waiting, and the limit that ends a job.
#include "coordinator/runtime/stall_watch.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

StallWatch::Clock::time_point at(double seconds) {
  return StallWatch::Clock::time_point(
      std::chrono::duration_cast<StallWatch::Clock::duration>(Seconds(seconds)));
}

// Two ranks. Rank 1 stalls in backward from second 100 on.
struct Watched {
  std::vector<std::string> lines;
  std::vector<std::optional<Stall>> shown;
  std::vector<std::string> given_up;
  bool is_standing = true;
  ProcessState process = ProcessState::running;
  Activity activity = Activity::backward;

  std::vector<RankMark> marks(double now) const {
    std::vector<RankMark> marks(2);
    for (std::size_t r = 0; r < 2; ++r) {
      marks[r].rank = rank_id(r);
      marks[r].activity = r == 0 ? Activity::waiting : activity;
      marks[r].round = RoundId(7);
      marks[r].step = StepId(7);
      marks[r].activity_seconds = marks[r].round_seconds = is_standing ? now - 100 : 0.1;
    }
    marks[1].process = process;
    return marks;
  }

  StallWatch watch(double limit = 3600) {
    StallWatchParts parts;
    parts.read = [this](StallWatch::Clock::time_point now) {
      return marks(Seconds(now.time_since_epoch()).count());
    };
    parts.show = [this](const std::optional<Stall>& stall) { shown.push_back(stall); };
    parts.give_up = [this](const std::string& why) { given_up.push_back(why); };
    parts.limit = Seconds(limit);
    parts.log =
        Log(LogLevel::info, kRoot, [this](std::string_view line) { lines.emplace_back(line); });
    return StallWatch(std::move(parts));
  }
};

// Polls every half second, as the coordinator does.
void look(StallWatch& watch, double from, double until) {
  for (double now = from; now <= until; now += 0.5) watch.look(at(now));
}

TEST_SUITE("runtime.stall_watch") {
  TEST_CASE("one line when a stall is found and one when it is over; every look is shown") {
    Watched it;
    StallWatch watch = it.watch();
    watch.round_closed(at(100));
    look(watch, 100.5, 102.5);
    CHECK(it.lines.empty());
    CHECK(it.shown.empty());
    look(watch, 103, 108);
    REQUIRE(it.lines.size() == 1);
    CHECK(it.lines[0].find("rank 1 is in backward of step 7 for 3.0 s; rank 0 waits for it") !=
          std::string::npos);
    CHECK(it.shown.size() == 11);
    it.is_standing = false;
    watch.round_closed(at(108.5));
    REQUIRE(it.lines.size() == 2);
    CHECK(it.lines[1].find("the wait for rank 1 is over after 8.0 s") != std::string::npos);
    CHECK_FALSE(it.shown.back());
    look(watch, 109, 120);
    CHECK(it.lines.size() == 2);
  }

  TEST_CASE("it is told again when the rank can no longer move") {
    Watched it;
    StallWatch watch = it.watch();
    watch.round_closed(at(100));
    look(watch, 100.5, 105);
    it.process = ProcessState::stopped;
    look(watch, 105.5, 110);
    REQUIRE(it.lines.size() == 2);
    CHECK(it.lines[1].find("its process is stopped") != std::string::npos);
  }

  TEST_CASE("a save is told as information") {
    Watched it;
    it.activity = Activity::saving;
    StallWatch watch = it.watch();
    watch.round_closed(at(100));
    look(watch, 100.5, 110);
    REQUIRE(it.lines.size() == 1);
    CHECK(it.lines[0].find("coxswain: rank 1 saves after step 7") == 0);
  }

  TEST_CASE("beyond the limit it gives up, once, with the name") {
    Watched it;
    StallWatch watch = it.watch(20);
    watch.round_closed(at(100));
    look(watch, 100.5, 119.5);
    CHECK(it.given_up.empty());
    look(watch, 120, 130);
    REQUIRE(it.given_up.size() == 1);
    CHECK(it.given_up[0].find("rank 1 is in backward of step 7") == 0);
    CHECK(it.given_up[0].find("control.wait_seconds allows 20 s") != std::string::npos);
  }

  TEST_CASE("a job that was suspended as a whole names nobody and ends nothing when it goes on") {
    Watched it;
    StallWatch watch = it.watch(20);
    watch.round_closed(at(100));
    watch.look(at(101));
    watch.look(at(5000));
    watch.look(at(5001));
    CHECK(it.lines.empty());
    CHECK(it.given_up.empty());
    look(watch, 5001.5, 5004);
    CHECK(it.lines.size() == 1);
    CHECK(it.given_up.empty());
  }

  TEST_CASE("rounds that take long are waited for longer") {
    Watched it;
    StallWatch watch = it.watch();
    for (double round = 0; round < 100; round += 10) {
      look(watch, round - 9.5, round - 0.5);
      it.lines.clear();
      it.is_standing = false;
      watch.round_closed(at(round));
    }
    it.lines.clear();
    it.is_standing = true;
    watch.round_closed(at(100));
    look(watch, 100.5, 129.5);
    CHECK(it.lines.empty());
    look(watch, 130, 132);
    CHECK(it.lines.size() == 1);
  }
}

}  // namespace
}  // namespace cox::runtime
