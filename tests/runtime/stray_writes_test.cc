// Stray writes of another process into every shared segment cause no crash, no access outside the
// segment, no unpublished plan and no false mark. Seeded random damage, 2,000 times a segment;
// COX_TEST_STRAY_WRITES=100000 sets another number.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/signal.h"
#include "coordinator/transport/exchange/round_exchange.h"
#include "coordinator/transport/shared/mark_board.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"
#include "coordinator/wire/mask.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using transport::BoardShape;
using transport::kLine;
using transport::kPage;
using transport::MarkBoard;
using transport::MarkClock;
using transport::MaskBoard;
using transport::MaskReader;
using transport::round_up;
using transport::SignalBoard;

using Random = std::mt19937_64;

int trials() {
  const char* wanted = std::getenv("COX_TEST_STRAY_WRITES");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : 2000;
}

// Memory between two inaccessible pages. Ends at the second page, or less than a line before it.
class FencedMemory {
 public:
  explicit FencedMemory(std::size_t bytes)
      : pages_(round_up(bytes, kPage) + 2 * kPage),
        start_(static_cast<std::byte*>(
            mmap(nullptr, pages_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        bytes_(start_ + pages_ - kPage - round_up(bytes), bytes) {
    mprotect(start_, kPage, PROT_NONE);
    mprotect(start_ + pages_ - kPage, kPage, PROT_NONE);
  }
  ~FencedMemory() { munmap(start_, pages_); }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  std::span<std::byte> zeroed() const {
    std::ranges::fill(bytes_, std::byte{0});
    return bytes_;
  }

 private:
  std::size_t pages_;
  std::byte* start_;
  std::span<std::byte> bytes_;
};

// Returns values that counters, sizes and flags could mistake for their own.
std::uint64_t likely_word(Random& random) {
  constexpr std::array<std::uint64_t, 10> kWords = {
      0, 1, 2, 3, ~0ull, ~1ull, 1ull << 31, 1ull << 32, 1ull << 62, 0x7FFF'FFFFull};
  const std::uint64_t pick = random() % (kWords.size() + 2);
  if (pick < kWords.size()) return kWords[pick];
  return pick == kWords.size() ? random() : random() % 4096;
}

// Makes one to four writes. Half of them hit the first lines, which hold the counters.
void damage(std::span<std::byte> memory, Random& random) {
  for (std::uint64_t writes = 1 + random() % 4; writes > 0; --writes) {
    const bool in_front = random() % 2 == 0;
    const std::size_t room = in_front ? std::min<std::size_t>(memory.size(), 1024) : memory.size();
    const std::size_t at = random() % room;
    const std::size_t word_at = std::min(at / 8 * 8, memory.size() - 8);
    const std::uint64_t word = likely_word(random);
    switch (random() % 4) {
      case 0:
        memory[at] ^= std::byte{1} << (random() % 8);
        break;
      case 1:
        std::memcpy(memory.data() + word_at, &word, 8);
        break;
      case 2:
        std::memcpy(memory.data() + word_at, &word, 4);
        break;
      default:
        std::ranges::fill(
            memory.subspan(at, std::min<std::size_t>(random() % 200, memory.size() - at)),
            static_cast<std::byte>(random()));
    }
  }
}

std::vector<wire::Frame> frames_of(const Plan& plan) {
  auto frames = wire::encode_plan(plan, nullptr);
  REQUIRE(frames.ok());
  return *frames;
}

Status show(MaskBoard& board, const std::vector<wire::Frame>& frames) {
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& frame : frames) set.push_back(frame.used());
  return board.publish(set);
}

TEST_SUITE_BEGIN("stray writes");

TEST_CASE("into masks: no plan is held that nobody published, and the next ones come through") {
  constexpr std::size_t kCapacity = 4096;
  const FencedMemory memory(MaskBoard::bytes_needed(kCapacity));
  const JobFacts job = test::capable_job(2, 300);
  Random random(1);
  test::RandomValues values(1);
  for (int trial = 0; trial < trials(); ++trial) {
    MaskBoard board = *MaskBoard::format(memory.zeroed(), kCapacity);
    MaskReader reader(*MaskBoard::attach(memory.bytes()));
    wire::PlanAssembler plans(job, initial_plan(job));
    std::vector<Plan> published = {initial_plan(job)};
    const auto show_next = [&] {
      published.push_back(values.plan(job, published.size()));
      static_cast<void>(show(board, frames_of(published.back())));
    };
    const auto hold = [&] {
      if (!reader.poll()) return;
      for (const auto frame : reader.frames()) static_cast<void>(plans.feed(frame));
    };
    for (int round = 0; round < 3; ++round) {
      show_next();
      damage(memory.bytes(), random);
      hold();
      REQUIRE(plans.held() == published.at(plans.held().id.number));
      static_cast<void>(MaskBoard::attach(memory.bytes()));
    }
    for (int round = 0; round < 2; ++round) {
      show_next();
      hold();
    }
    REQUIRE(plans.held() == published.back());
  }
}

RankSignal sealed_signal(std::int32_t rank, std::uint64_t round) {
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.round = RoundId(round);
  signal.rounds = 1;
  seal(signal);
  return signal;
}

TEST_CASE("into signals: damaged reports are denied, and the board comes back to order") {
  const BoardShape shape{3, 4};
  const FencedMemory memory(SignalBoard::bytes_needed(shape));
  const auto none = std::chrono::nanoseconds(0);
  Random random(2);
  std::vector<BlockEvidence> evidence(4);
  for (BlockEvidence& each : evidence) each.sampled = 1;
  for (int trial = 0; trial < trials(); ++trial) {
    SignalBoard board = *SignalBoard::format(memory.zeroed(), shape);
    const auto post_all = [&](std::uint64_t round) {
      int posted = 0;
      for (std::int32_t rank = 0; rank < 3; ++rank)
        posted += board.post(rank, sealed_signal(rank, round), evidence) ? 1 : 0;
      return posted;
    };
    for (std::uint64_t round = 1; round <= 3; ++round) {
      static_cast<void>(post_all(round));
      damage(memory.bytes(), random);
      static_cast<void>(board.wait(3, none));
      static_cast<void>(board.wait_polling(3, none, 1));
      const auto taken = board.collect();
      REQUIRE(taken.signals.size() <= 3);
      for (const RankSignal& signal : taken.signals) {
        if (!check(signal).ok()) continue;
        REQUIRE(signal.rank.value() < 3);
        REQUIRE(signal.round.value() <= round);
      }
      REQUIRE(std::ranges::all_of(taken.evidence, [](const auto& e) { return e.sampled <= 3; }));
    }
    for (std::uint64_t round = 4; round < 8; ++round) {
      static_cast<void>(post_all(round));
      static_cast<void>(board.collect());
    }
    REQUIRE(post_all(8) == 3);
    REQUIRE(board.wait(3, none) == transport::BoardWake::complete);
    REQUIRE(board.collect().signals.size() == 3);
    REQUIRE(board.wait(1, none) != transport::BoardWake::complete);
    static_cast<void>(SignalBoard::attach(memory.bytes(), shape));
  }
}

MarkClock::time_point at(int seconds) {
  return MarkClock::time_point(std::chrono::seconds(seconds));
}

TEST_CASE("into marks: a mark is one that its rank left, or unknown") {
  const FencedMemory memory(round_up(MarkBoard::bytes_needed(3)));
  const auto self = transport::this_process();
  Random random(3);
  for (int trial = 0; trial < trials(); ++trial) {
    const MarkBoard board = *MarkBoard::format(memory.zeroed(), 3);
    std::array writers = {board.writer(0), board.writer(1), board.writer(2)};
    for (auto& writer : writers) {
      writer.sign(self);
      writer.enter(Activity::outside, StepId(0), at(10));
    }
    const std::vector told(5, RankMark{.rank = RankId(7), .activity = Activity::data});
    for (std::uint64_t move = 1; move <= 3; ++move) {
      for (auto& writer : writers) {
        writer.begin_round(RoundId(move), at(10));
        writer.enter(Activity::forward, StepId(move), at(10));
      }
      board.tell(told, at(10));
      damage(memory.bytes(), random);
      for (std::size_t slot = 0; slot < 3; ++slot) {
        const RankMark mark = board.read_slot(slot, at(11), MarkBoard::Look::marks);
        if (mark.activity == Activity::unknown) continue;
        REQUIRE(mark.round.value() + 1 >= move);
        REQUIRE(mark.round.value() <= move);
        REQUIRE(mark.step.value() + 1 >= move);
        REQUIRE(mark.activity_seconds <= 1.0);
        REQUIRE(mark.silent_seconds <= 1.0);
        const auto process = board.process(slot);
        REQUIRE((process == self || process == transport::ProcessId{}));
        REQUIRE_FALSE(board.is_end_explained(slot));
      }
      for (const RankMark& mark : board.told(at(11))) REQUIRE(mark.rank == RankId(7));
      static_cast<void>(MarkBoard::attach(memory.bytes(), 3));
    }
    writers[1].enter(Activity::waiting, StepId(9), at(12));
    REQUIRE(board.read_slot(1, at(12), MarkBoard::Look::marks).step == StepId(9));
  }
}

// Two ranks of a node in one thread.
struct TwoSeats {
  TwoSeats(const transport::BucketLayout& layout, std::span<std::byte> memory) {
    transport::format_shared_exchange(memory, layout, 2);
    for (std::int32_t seat = 0; seat < 2; ++seat) {
      transport::SharedParts parts;
      parts.rank = RankId(seat);
      parts.seat = seat;
      parts.node_ranks = {RankId(0), RankId(1)};
      parts.leader_ranks = {RankId(0)};
      parts.segment = transport::SharedSegment(memory, nullptr);
      seats[static_cast<std::size_t>(seat)] =
          transport::make_shared_exchange(layout, {}, std::move(parts));
    }
  }
  // Returns whether every call succeeded and all buckets are done.
  bool run_round(std::span<std::byte> memory, Random& random) {
    for (std::size_t bucket = 0; bucket < seats[0]->buckets(); ++bucket) {
      for (auto& seat : seats) {
        if (!seat->start(bucket).ok()) return false;
        if (random() % 4 == 0) damage(memory, random);
        if (!seat->advance().ok()) return false;
      }
    }
    for (int poll = 0; poll < 20; ++poll) {
      for (auto& seat : seats) {
        if (!seat->advance().ok()) return false;
      }
    }
    return std::ranges::all_of(seats,
                               [](const auto& seat) { return seat->is_done(seat->buckets() - 1); });
  }
  std::array<std::unique_ptr<transport::BucketExchange>, 2> seats;
};

TEST_CASE("into the memory of gradients: sums may be wrong, nothing outside is touched") {
  const std::vector<transport::BucketSpec> buckets = {
      {4000, transport::sum_f32()}, {64, transport::sum_u64()}, {9000, transport::max_f64()}};
  const auto layout = *transport::BucketLayout::make(buckets, 256);
  const FencedMemory memory(transport::shared_exchange_bytes(layout, 2));
  Random random(4);
  for (int trial = 0; trial < trials(); ++trial) {
    TwoSeats ranks(layout, memory.zeroed());
    for (int round = 0; round < 3 && ranks.run_round(memory.bytes(), random); ++round) continue;
  }
}

TEST_CASE("a departure that nobody told is none, and one that a rank tells is heard") {
  const std::vector<transport::BucketSpec> buckets = {{64, transport::sum_u64()}};
  const auto layout = *transport::BucketLayout::make(buckets, 0);
  const FencedMemory memory(transport::shared_exchange_bytes(layout, 2));
  TwoSeats ranks(layout, memory.zeroed());
  std::ranges::fill(memory.bytes().subspan(kLine, kLine), std::byte{2});
  CHECK(ranks.seats[0]->start(0).ok());
  const std::uint32_t departed = 2;
  std::memcpy(memory.bytes().data() + kLine, &departed, sizeof departed);
  CHECK(ranks.seats[0]->advance().ok());
  ranks.seats[1]->leave("it is tired");
  CHECK(ranks.seats[0]->advance().message().find("it is tired") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::runtime
