// Tests which ranks a stall names: a table of situations, then simulated jobs with and without
// stalls.
#include "coordinator/core/stall.h"

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

RankMark mark(std::int32_t rank, Activity activity, double seconds, std::uint64_t round = 5) {
  RankMark mark;
  mark.rank = RankId(rank);
  mark.activity = activity;
  mark.process = ProcessState::running;
  mark.round = RoundId(round);
  mark.step = StepId(round);
  mark.activity_seconds = mark.round_seconds = seconds;
  return mark;
}

RankMark with(RankMark mark, ProcessState process) {
  mark.process = process;
  return mark;
}

RankMark silent_for(RankMark mark, double seconds) {
  mark.silent_seconds = seconds;
  return mark;
}

std::string numbers(const std::vector<RankMark>& marks) {
  std::string text;
  for (const RankMark& each : marks) text += std::to_string(each.rank.value()) + " ";
  return text;
}

std::string numbers(const std::vector<RankId>& ranks) {
  std::string text;
  for (const RankId rank : ranks) text += std::to_string(rank.value()) + " ";
  return text;
}

constexpr auto kWaits = Activity::waiting;
constexpr auto kBackward = Activity::backward;

struct Situation {
  std::string what;
  std::vector<RankMark> marks;
  std::string culprits;  // "1 2 "
  std::string waiting;
  std::string silent;
};

const std::vector<Situation> kStalls = {
    {"a rank that works while others wait",
     {mark(0, kWaits, 4), mark(1, kBackward, 6), mark(2, kWaits, 5)},
     "1 ",
     "0 2 ",
     ""},
    {"a stopped process is named sooner",
     {mark(0, kWaits, 1.5), with(mark(1, kBackward, 9), ProcessState::stopped)},
     "1 ",
     "0 ",
     ""},
    {"a process that is gone",
     {mark(0, kWaits, 1.5), with(mark(1, Activity::data, 9), ProcessState::gone)},
     "1 ",
     "0 ",
     ""},
    {"a rank stopped while it waited keeps the others, and is not called waiting",
     {mark(0, kWaits, 4), with(mark(1, kWaits, 9), ProcessState::stopped), mark(2, kWaits, 4)},
     "1 ",
     "0 2 ",
     ""},
    {"a rank a round behind",
     {mark(0, kWaits, 4, 6), mark(1, Activity::optimizer, 40, 6), mark(2, kWaits, 3.5, 6)},
     "1 ",
     "0 2 ",
     ""},
    {"a save on one rank", {mark(0, Activity::saving, 20), mark(1, kWaits, 19)}, "0 ", "1 ", ""},
    {"a rank outside of a step",
     {mark(0, Activity::outside, 20), mark(1, kWaits, 19)},
     "0 ",
     "1 ",
     ""},
    {"a rank that has left its loop",
     {mark(0, kWaits, 1.5), mark(1, Activity::finished, 9)},
     "1 ",
     "0 ",
     ""},
    {"two at a time",
     {mark(0, kBackward, 9), mark(1, kWaits, 4), mark(2, Activity::forward, 8)},
     "0 2 ",
     "1 ",
     ""},
    {"all wait but one node says nothing",
     {mark(0, kWaits, 6), mark(1, Activity::unknown, 0), mark(2, kWaits, 6)},
     "",
     "0 2 ",
     "1 "},
    {"all wait, and one thread does not look any more",
     {mark(0, kWaits, 9), silent_for(mark(1, kWaits, 9), 8)},
     "1 ",
     "0 ",
     ""},
    {"all wait for each other for long",
     {mark(0, kWaits, 31), mark(1, kWaits, 40)},
     "",
     "0 1 ",
     ""}};

const std::vector<Situation> kNoStalls = {
    {"nobody waits", {mark(0, kBackward, 90), mark(1, Activity::forward, 90)}, "", "", ""},
    {"a short wait", {mark(0, kWaits, 2.9), mark(1, kBackward, 50)}, "", "", ""},
    {"the only rank that waits is ahead of nobody: the other has completed its round",
     {mark(0, kWaits, 9, 5), mark(1, kBackward, 9, 6)},
     "",
     "",
     ""},
    {"a rank that finished after the round",
     {mark(0, kWaits, 9, 5), mark(1, Activity::finished, 9, 6)},
     "",
     "",
     ""},
    {"all stopped: nobody waits",
     {with(mark(0, kWaits, 9), ProcessState::stopped),
      with(mark(1, kBackward, 9), ProcessState::stopped)},
     "",
     "",
     ""},
    {"all wait for a moment", {mark(0, kWaits, 9), mark(1, kWaits, 9)}, "", "", ""},
    {"a rank of which nothing is heard yet",
     {mark(0, kWaits, 4), mark(1, Activity::unknown, 0)},
     "",
     "",
     ""},
    {"one rank alone", {mark(0, kWaits, 900)}, "", "", ""}};

}  // namespace

TEST_SUITE("stall") {
  TEST_CASE("the ranks that keep others waiting are named, the others are called waiting") {
    for (const Situation& situation : kStalls) {
      CAPTURE(situation.what);
      const auto stall = find_stall(situation.marks, {});
      REQUIRE(stall);
      CHECK(numbers(stall->culprits) == situation.culprits);
      CHECK(numbers(stall->waiting) == situation.waiting);
      CHECK(numbers(stall->silent) == situation.silent);
    }
  }

  TEST_CASE("nobody is named where nobody is kept waiting") {
    for (const Situation& situation : kNoStalls) {
      CAPTURE(situation.what);
      CHECK_FALSE(find_stall(situation.marks, {}));
    }
    CHECK_FALSE(find_stall({}, {}));
  }

  TEST_CASE("a wait that began before the round was complete counts from there") {
    RankMark late_to_notice = mark(0, kWaits, 60);
    late_to_notice.round_seconds = 0.5;  // the round before has just ended
    CHECK_FALSE(find_stall(std::vector{late_to_notice, mark(1, kBackward, 0.5)}, {}));
  }

  TEST_CASE("patience grows with the steps and is never short") {
    CHECK(patience_for(0).seconds == 3);
    CHECK(patience_for(0.01).seconds == 3);
    CHECK(patience_for(20).seconds == 60);
    CHECK(patience_for(20).stopped_seconds == 1);
    CHECK(patience_for(1e300).seconds == 3);  // an impossible step time
  }

  TEST_CASE("the sentence says who, where, for how long and who waits") {
    const auto text = [](const std::vector<RankMark>& marks) {
      return text_of(find_stall(marks, {}).value());
    };
    CHECK(text({mark(0, kWaits, 6), with(mark(1, kBackward, 6.2), ProcessState::stopped),
                mark(2, kWaits, 6)}) ==
          "rank 1 is in backward of step 5 for 6.2 s, its process is stopped; ranks 0, 2 wait for "
          "it");
    CHECK(text({mark(0, Activity::saving, 75), mark(1, kWaits, 70)}) ==
          "rank 0 saves after step 5, for 1 min 15 s; rank 1 waits for it");
    CHECK(text({mark(0, kWaits, 6), mark(1, Activity::unknown, 0)}) ==
          "rank 0 waits for 6.0 s for rank 1, from which no status arrives");
    RankMark many_phases = mark(1, kBackward, 0.2);
    many_phases.round_seconds = 20;
    CHECK(text({mark(0, kWaits, 6), many_phases}) ==
          "rank 1 is in backward of step 5 and has been in this step for 20.0 s; rank 0 waits for "
          "it");
    CHECK(text({mark(0, kWaits, 6), mark(1, Activity::finished, 5)})
              .find("rank 1 has left its loop after step 5") == 0);
  }

  TEST_CASE("what a stall is") {
    const auto save = find_stall(std::vector{mark(0, Activity::saving, 9), mark(1, kWaits, 9)}, {});
    CHECK(save.value().is_save());
    const auto frozen_save = find_stall(
        std::vector{with(mark(0, Activity::saving, 9), ProcessState::stopped), mark(1, kWaits, 9)},
        {});
    CHECK_FALSE(frozen_save.value().is_save());
    const auto left =
        find_stall(std::vector{mark(0, kWaits, 9), mark(1, Activity::finished, 9)}, {});
    REQUIRE(left.value().culprits.size() == 1);
    CHECK(left->culprits[0].rank == RankId(1));
    CHECK(left->is_waiting(RankId(0)));
    CHECK_FALSE(left->is_waiting(RankId(1)));
  }

  TEST_CASE("every phase of a step is an activity of its own, and communication is waiting") {
    for (std::size_t p = 0; p < kPhases; ++p) {
      const auto phase = static_cast<Phase>(p);
      const bool waits = phase == Phase::communication;
      CHECK(to_string(activity_of(phase)) == (waits ? "waiting" : to_string(phase)));
    }
  }
}

namespace {

// Ranks in step: each works for a while, gives its part, and waits for all others. Time advances
// from check to check.
class Ranks {
 public:
  Ranks(std::uint64_t seed, std::size_t ranks, double step_seconds, double longest_pause)
      : random_(seed), step_seconds_(step_seconds), longest_pause_(longest_pause), rank_(ranks) {
    begin_step();
  }

  void stop(std::size_t rank) { rank_[rank].is_stopped = true; }
  void advance(double seconds) {
    now_ += seconds;
    for (;;) {
      double last = 0;
      for (const Rank& each : rank_) last = std::max(last, each.is_stopped ? 1e18 : each.arrives);
      if (last > now_) return;
      begun_ = last;
      ++round_;
      begin_step();
    }
  }

  std::vector<RankMark> marks() const {
    std::vector<RankMark> marks;
    for (std::size_t r = 0; r < rank_.size(); ++r) {
      const Rank& each = rank_[r];
      const bool waits = !each.is_stopped && each.arrives <= now_;
      RankMark one = mark(static_cast<std::int32_t>(r), waits ? kWaits : kBackward,
                          waits ? now_ - each.arrives : now_ - begun_, round_);
      one.round_seconds = now_ - begun_;
      if (each.is_stopped) one.process = ProcessState::stopped;
      marks.push_back(one);
    }
    return marks;
  }
  // Returns how long the first rank to arrive has waited; 0 if none waits.
  double longest_wait() const {
    double first = now_;
    for (const Rank& each : rank_) first = std::min(first, each.is_stopped ? now_ : each.arrives);
    return now_ - first;
  }
  bool has_arrived(std::size_t rank) const {
    return !rank_[rank].is_stopped && rank_[rank].arrives <= now_;
  }

 private:
  struct Rank {
    double arrives = 0;
    bool is_stopped = false;
  };

  // Imitates a loaded machine: steps vary, and any rank may lose its core for a while.
  void begin_step() {
    for (Rank& each : rank_) {
      const double pause = random_.chance(0.05) ? random_.uniform() * longest_pause_ : 0;
      each.arrives = begun_ + step_seconds_ * (0.5 + random_.uniform()) + pause;
    }
  }

  testing::Random random_;
  double step_seconds_;
  double longest_pause_;
  std::vector<Rank> rank_;
  std::uint64_t round_ = 0;
  double begun_ = 0;
  double now_ = 0;
};

}  // namespace

TEST_SUITE("stall") {
  TEST_CASE("a job on a loaded machine names nobody, however uneven its ranks") {
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      testing::Random random(seed);
      const double step = 0.005 + 5 * random.uniform() * random.uniform();
      // Pauses within the patience: a longer pause is a stall.
      const double pause = patience_for(step).seconds - step;
      Ranks ranks(seed, 2 + random.below(15), step, std::max(0.0, pause));
      for (int look = 0; look < 400; ++look) {
        ranks.advance(random.uniform());
        CHECK_FALSE(find_stall(ranks.marks(), patience_for(step)));
      }
    }
  }

  TEST_CASE("who is named has not arrived while another has waited that long, and nobody else is") {
    int stalls = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      testing::Random random(seed);
      const double step = 0.005 + random.uniform();
      Ranks ranks(seed, 2 + random.below(7), step, 30);
      for (int look = 0; look < 200; ++look) {
        ranks.advance(random.uniform());
        const auto stall = find_stall(ranks.marks(), patience_for(step));
        CHECK(stall.has_value() == (ranks.longest_wait() >= patience_for(step).seconds));
        if (!stall) continue;
        ++stalls;
        for (const RankMark& culprit : stall->culprits)
          CHECK_FALSE(ranks.has_arrived(static_cast<std::size_t>(culprit.rank.value())));
        for (const RankId rank : stall->waiting)
          CHECK(ranks.has_arrived(static_cast<std::size_t>(rank.value())));
        CHECK(stall->culprits.size() + stall->waiting.size() == ranks.marks().size());
      }
    }
    CHECK(stalls > 1000);
  }

  TEST_CASE(
      "a stopped rank is the one that is named, within the time that a step and patience take") {
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      testing::Random random(seed);
      const std::size_t count = 2 + random.below(7);
      Ranks ranks(seed, count, 0.05, 0.2);
      ranks.advance(10 * random.uniform());
      const std::size_t stopped = random.below(count);
      ranks.stop(stopped);
      ranks.advance(2);
      const auto stall = find_stall(ranks.marks(), patience_for(0.05));
      REQUIRE(stall);
      CHECK(numbers(stall->culprits) == std::to_string(stopped) + " ");
      CHECK(stall->waiting.size() == count - 1);
    }
  }
}

}  // namespace cox
