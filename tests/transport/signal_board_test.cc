#include "coordinator/transport/shared/signal_board.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "coordinator/transport/shared/segment.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Returns a report whose parts all identify its rank and time, so that a mixture of two is
// detected.
RankSignal report(std::int32_t rank, std::uint64_t number) {
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.round = RoundId(number);
  signal.loss = static_cast<double>(number);
  signal.tokens = number;
  signal.save_seconds = static_cast<float>(number);
  seal(signal);
  return signal;
}

bool whole(const RankSignal& signal) {
  const std::uint64_t number = signal.round.value();
  return check(signal).ok() && signal.tokens == number &&
         signal.save_seconds == static_cast<float>(number);
}

std::vector<BlockEvidence> evidence(std::size_t blocks, std::uint32_t count) {
  std::vector<BlockEvidence> all(blocks);
  for (BlockEvidence& one : all) one.overflow_forward = one.sampled = count;
  return all;
}

struct Board {
  explicit Board(const BoardShape& shape)
      : memory(heap_segment(SignalBoard::bytes_needed(shape))),
        board(*SignalBoard::format(memory.bytes(), shape)) {}
  SharedSegment memory;
  SignalBoard board;
};

TEST_SUITE_BEGIN("signal board");

TEST_CASE("a report arrives whole, once, with its evidence merged") {
  Board two({2, 3});
  CHECK(two.board.post(1, report(1, 7), evidence(3, 5)));
  CHECK(two.board.post(0, report(0, 6), evidence(2, 10)));
  const CollectedSignals collected = two.board.collect();
  REQUIRE(collected.signals.size() == 2);
  CHECK(collected.signals[0].rank == RankId(0));
  CHECK(collected.signals[1].round == RoundId(7));
  CHECK(collected.evidence[0].sampled == 15);
  CHECK(collected.evidence[2].sampled == 5);
  CHECK(two.board.collect().signals.empty());
}

TEST_CASE("a rank cannot post again before its report was taken") {
  Board one({1, 0});
  CHECK(one.board.consumed(0));
  CHECK(one.board.post(0, report(0, 1), {}));
  CHECK_FALSE(one.board.consumed(0));
  CHECK_FALSE(one.board.post(0, report(0, 2), {}));
  CHECK(one.board.collect().signals[0].round == RoundId(1));
  CHECK(one.board.consumed(0));
  CHECK(one.board.post(0, report(0, 3), {}));
}

TEST_CASE("waiting ends when all expected reports are there, at a ring, or at the timeout") {
  Board board({3, 0});
  CHECK(board.board.wait(1, milliseconds(1)) == BoardWake::timed_out);
  CHECK(board.board.post(0, report(0, 1), {}));
  CHECK(board.board.wait(1, seconds(20)) == BoardWake::complete);
  CHECK(board.board.wait(2, milliseconds(1)) == BoardWake::timed_out);
  board.board.notify();
  CHECK(board.board.wait(2, seconds(20)) == BoardWake::notified);
  CHECK(board.board.wait(2, milliseconds(1)) == BoardWake::timed_out);
  CHECK(board.board.post(2, report(2, 1), {}));
  CHECK(board.board.wait(2, seconds(20)) == BoardWake::complete);
}

TEST_CASE("a reader that polls finds reports that wake nobody, and hears a notice") {
  Board board({2, 0});
  CHECK(board.board.wait_polling(1, milliseconds(1), 3) == BoardWake::timed_out);
  board.board.notify();
  CHECK(board.board.wait_polling(1, seconds(20), 1) == BoardWake::notified);
  std::jthread poster([&] {
    CHECK(board.board.post(0, report(0, 1), {}));
    CHECK(board.board.post(1, report(1, 1), {}));
  });
  CHECK(board.board.wait_polling(2, milliseconds(1), 20'000) == BoardWake::complete);
  CHECK(board.board.collect().signals.size() == 2);
  std::jthread notifier([&] { board.board.notify(); });
  CHECK(board.board.wait_polling(1, seconds(20), 1) == BoardWake::notified);
}

TEST_CASE("memory that holds no board of this shape is refused") {
  const BoardShape shape{2, 4};
  const SharedSegment memory = heap_segment(SignalBoard::bytes_needed(shape));
  CHECK(SignalBoard::attach(memory.bytes(), shape).status().code() == StatusCode::data_loss);
  CHECK(SignalBoard::format(memory.bytes(), shape).ok());
  CHECK(SignalBoard::attach(memory.bytes(), shape).ok());
  CHECK(SignalBoard::attach(memory.bytes(), {2, 3}).status().code() == StatusCode::data_loss);
  CHECK(SignalBoard::attach(memory.bytes().first(64), shape).status().code() ==
        StatusCode::resource_exhausted);
  CHECK(SignalBoard::format(memory.bytes(), {0, 4}).status().code() ==
        StatusCode::invalid_argument);
  CHECK(SignalBoard::format(memory.bytes().subspan(1), {1, 0}).status().code() ==
        StatusCode::invalid_argument);
}

// Writers post as soon as they may; the reader sleeps in between. A missed wake-up appears as a
// timeout, a torn report as an invalid one, a lost or doubled one in the numbers.
void rounds_with_threads(std::int32_t ranks, std::uint64_t rounds) {
  const std::uint32_t blocks = 8;
  Board shared({ranks, blocks});
  std::vector<std::thread> writers;
  for (std::int32_t r = 0; r < ranks; ++r) {
    writers.emplace_back([&, r] {
      SignalBoard mine = *SignalBoard::attach(shared.memory.bytes(), {ranks, blocks});
      const std::vector<BlockEvidence> given = evidence(blocks, 1);
      for (std::uint64_t i = 1; i <= rounds;) {
        if (mine.post(r, report(r, i), given)) {
          ++i;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<std::uint64_t> seen(static_cast<std::size_t>(ranks), 0);
  std::uint64_t taken = 0, torn = 0, out_of_order = 0, missed = 0, wrong_evidence = 0;
  const std::uint64_t total = rounds * static_cast<std::uint64_t>(ranks);
  while (taken < total) {
    const auto left = static_cast<std::int32_t>(
        std::min<std::uint64_t>(static_cast<std::uint64_t>(ranks), total - taken));
    // Near the end only some ranks still post, so one report is enough.
    const std::int32_t expected = left < ranks ? 1 : (taken % 3 == 0 ? 1 : ranks);
    const bool may_starve = expected > 1 && std::ranges::max(seen) >= rounds;
    const BoardWake wake = shared.board.wait(may_starve ? 1 : expected, seconds(30));
    missed += wake != BoardWake::complete;
    const CollectedSignals collected = shared.board.collect();
    for (const RankSignal& signal : collected.signals) {
      torn += !whole(signal);
      std::uint64_t& last = seen[static_cast<std::size_t>(signal.rank.value())];
      out_of_order += signal.round.value() != last + 1;
      last = signal.round.value();
    }
    const auto count = static_cast<std::uint32_t>(collected.signals.size());
    wrong_evidence += collected.evidence[blocks - 1].sampled != count;
    taken += count;
    if (missed > 0) break;
  }
  CHECK(missed == 0);
  CHECK(torn == 0);
  CHECK(out_of_order == 0);
  CHECK(wrong_evidence == 0);
  if (missed > 0) std::abort();  // the writers would spin for ever
  for (std::thread& writer : writers) writer.join();
}

TEST_CASE("no wake-up is missed and no report is torn in 100,000 rounds of one writer") {
  rounds_with_threads(1, 100'000);
}

TEST_CASE("no wake-up is missed and no report is torn with several writers") {
  rounds_with_threads(3, 10'000);
}

TEST_CASE("a board works between processes") {
  const BoardShape shape{1, 2};
  const std::size_t bytes = SignalBoard::bytes_needed(shape);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const std::span<std::byte> span(static_cast<std::byte*>(memory), bytes);
  SignalBoard board = *SignalBoard::format(span, shape);
  constexpr std::uint64_t kRounds = 2000;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    SignalBoard mine = *SignalBoard::attach(span, shape);
    for (std::uint64_t i = 1; i <= kRounds; i += mine.post(0, report(0, i), {}) ? 1 : 0) {
    }
    _exit(0);
  }
  std::uint64_t next = 1;
  while (next <= kRounds && board.wait(1, seconds(20)) == BoardWake::complete) {
    for (const RankSignal& signal : board.collect().signals) {
      if (!whole(signal) || signal.round.value() != next) break;
      ++next;
    }
  }
  CHECK(next == kRounds + 1);
  int status = 0;
  if (next <= kRounds) kill(child, SIGKILL);
  waitpid(child, &status, 0);
  CHECK(status == 0);
  munmap(memory, bytes);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
