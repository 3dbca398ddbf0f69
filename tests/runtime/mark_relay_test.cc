// Marks between nodes: hostile letters, and a courier that finds the post.
#include "coordinator/runtime/mark_relay.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using transport::MarkBoard;
using transport::MarkClock;

constexpr RelaySecret kSecret = {1, 2, 3, 4};

RankMark mark(std::int32_t rank, Activity activity, double seconds) {
  RankMark mark;
  mark.rank = RankId(rank);
  mark.activity = activity;
  mark.process = ProcessState::stopped;
  mark.round = RoundId(41);
  mark.step = StepId(40);
  mark.activity_seconds = seconds;
  mark.round_seconds = 2 * seconds;
  mark.silent_seconds = seconds / 2;
  return mark;
}

// Returns the board of a node with these ranks.
NodeMarks node_of(const std::vector<RankId>& ranks) {
  auto memory = transport::heap_segment(MarkBoard::bytes_needed(ranks.size()));
  const MarkBoard board = *MarkBoard::format(memory.bytes(), ranks.size());
  return {std::move(memory), board, ranks, 0};
}

template <class Done>
bool comes_true(const Done& done) {
  for (int i = 0; i < 1200; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

TEST_SUITE("runtime.mark_relay") {
  TEST_CASE("a letter comes back as it was written") {
    std::vector<RankMark> marks;
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(kMarksOfALetter); ++r)
      marks.push_back(mark(r, static_cast<Activity>(r % kActivities), r));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kMarksOfALetter}) {
      const auto letter = write_letter(std::span(marks).first(count), kSecret);
      CHECK(letter.size() <= kLetterBytes);
      const auto read = read_letter(letter, kSecret, 64);
      REQUIRE(read);
      CHECK(*read == std::vector(marks.begin(), marks.begin() + static_cast<long>(count)));
    }
  }

  TEST_CASE("letters of another job, for fewer ranks or with times that are none are dropped") {
    const auto letter = write_letter(std::vector{mark(5, Activity::data, 1)}, kSecret);
    CHECK(read_letter(letter, kSecret, 6));
    CHECK_FALSE(read_letter(letter, kSecret, 5));
    CHECK_FALSE(read_letter(letter, RelaySecret{9}, 6));
    CHECK_FALSE(read_letter({}, kSecret, 6));
    CHECK_FALSE(
        read_letter(write_letter(std::vector{mark(-1, Activity::data, 1)}, kSecret), kSecret, 6));
    for (const double seconds : {-1.0, std::nan(""), 1e30}) {
      const auto bad = write_letter(std::vector{mark(1, Activity::data, seconds)}, kSecret);
      CHECK_FALSE(read_letter(bad, kSecret, 6));
    }
  }

  TEST_CASE("damaged letters never name a rank or an activity that does not exist") {
    testing::Random random(11);
    const auto letter = write_letter(
        std::vector{mark(1, Activity::data, 1), mark(2, Activity::saving, 2)}, kSecret);
    for (int trial = 0; trial < 200'000; ++trial) {
      auto damaged = letter;
      for (std::uint64_t flips = 1 + random.below(4); flips > 0; --flips)
        damaged[random.below(damaged.size())] ^= static_cast<std::byte>(1 << random.below(8));
      if (random.chance(0.2)) damaged.resize(random.below(damaged.size() + 1));
      const auto read = read_letter(damaged, kSecret, 4);
      for (const RankMark& each : read.value_or(std::vector<RankMark>{})) {
        CHECK(each.rank.value() >= 0);
        CHECK(each.rank.value() < 4);
        CHECK(static_cast<std::size_t>(each.activity) < kActivities);
        CHECK(static_cast<std::size_t>(each.process) < kProcessStates);
        CHECK(each.activity_seconds >= 0);
      }
    }
  }

  TEST_CASE("marks that stand still reach the post, and its answer the node's board") {
    const auto post = MarkReceiver::open(4);
    REQUIRE(post.ok());
    const NodeMarks node = node_of({RankId(2), RankId(3)});
    const auto begin = MarkClock::now() - std::chrono::seconds(30);
    node.board.writer(0).enter(Activity::waiting, StepId(8), begin);
    node.board.writer(1).enter(Activity::backward, StepId(7), begin);
    const auto courier = MarkSender::start(node, (*post)->address(), 4);
    REQUIRE(courier.ok());
    std::vector<RankMark> all;
    CHECK(comes_true([&] {
      all.assign(4, {});
      (*post)->collect(MarkClock::now());
      (*post)->fill(all, MarkClock::now());
      return all[2].activity != Activity::unknown && all[3].activity != Activity::unknown;
    }));
    CHECK(all[0].activity == Activity::unknown);
    CHECK(all[2].activity == Activity::waiting);
    CHECK(all[3].activity == Activity::backward);
    CHECK(all[3].step == StepId(7));
    CHECK(all[3].activity_seconds >= 30);
    Stall stall;
    stall.culprits = {mark(1, Activity::finished, 3)};
    CHECK(comes_true([&] {
      (*post)->collect(MarkClock::now());
      (*post)->answer(stall, MarkClock::now());
      return !node.board.told(MarkClock::now()).empty();
    }));
    CHECK(node.board.told(MarkClock::now()).at(0).rank == RankId(1));
  }

  TEST_CASE("letters that lay in the post for long say nothing of now") {
    const auto post = MarkReceiver::open(4);
    const auto stranger = transport::Datagrams::open();
    REQUIRE(post.ok());
    REQUIRE(stranger.ok());
    const RelayAddress& address = (*post)->address();
    const auto letter = write_letter(std::vector{mark(1, Activity::data, 1)}, address.secret);
    const transport::DatagramAddress loopback{address.ips[address.count - 1],
                                              static_cast<std::uint16_t>(address.port)};
    stranger->send(letter, loopback);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto now = MarkClock::now();
    (*post)->collect(now);  // the first call
    std::vector<RankMark> all(4);
    (*post)->fill(all, now);
    CHECK(all[1].activity == Activity::unknown);
    // The stranger is heard for a while, then forgotten.
    CHECK(comes_true([&] {
      stranger->send(letter, loopback);
      (*post)->collect(now);
      (*post)->fill(all, now);
      return all[1].activity == Activity::data;
    }));
    // A mark from before the round of a rank on rank 0's node is ignored.
    for (const double round_seconds : {9.0, 0.5}) {
      std::vector<RankMark> in_round(4);
      in_round[0] = mark(0, Activity::waiting, round_seconds / 2);
      (*post)->fill(in_round, now + std::chrono::seconds(1));
      CHECK((in_round[1].activity == Activity::data) == (round_seconds > 1));
    }
    std::vector<RankMark> later(4);
    (*post)->fill(later, now + std::chrono::minutes(1));
    CHECK(later[1].activity == Activity::unknown);
  }
}

}  // namespace
}  // namespace cox::runtime
