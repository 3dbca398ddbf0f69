// Marks of ranks in shared memory, and the operating system's state of a process.
#include "coordinator/transport/shared/mark_board.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/transport/shared/segment.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using Look = MarkBoard::Look;

MarkClock::time_point at(double seconds) {
  return MarkClock::time_point(std::chrono::duration_cast<MarkClock::duration>(Seconds(seconds)));
}

struct Board {
  explicit Board(std::size_t ranks)
      : memory(heap_segment(MarkBoard::bytes_needed(ranks))),
        board(*MarkBoard::format(memory.bytes(), ranks)) {}
  SharedSegment memory;
  MarkBoard board;
};

TEST_SUITE_BEGIN("mark board");

TEST_CASE("a mark says what a rank does, in which step and round, and since when") {
  const Board it(2);
  MarkWriter writer = it.board.writer(1);
  CHECK(it.board.read(at(1), Look::marks)[1].activity == Activity::unknown);
  writer.begin_round(RoundId(7), at(10));
  writer.enter(Activity::backward, StepId(9), at(12));
  const auto marks = it.board.read(at(15), Look::marks);
  REQUIRE(marks.size() == 2);
  CHECK(marks[0].activity == Activity::unknown);
  CHECK(marks[1].activity == Activity::backward);
  CHECK(marks[1].round == RoundId(7));
  CHECK(marks[1].step == StepId(9));
  CHECK(marks[1].activity_seconds == doctest::Approx(3));
  CHECK(marks[1].round_seconds == doctest::Approx(5));
  CHECK(marks[1].silent_seconds == doctest::Approx(3));
  CHECK(marks[1].process == ProcessState::unknown);
  CHECK(it.board.read(at(11), Look::marks)[1].activity_seconds == 0);  // the clock went back
}

TEST_CASE("a beat says that the thread lives, and changes nothing else") {
  const Board it(1);
  MarkWriter writer = it.board.writer(0);
  writer.enter(Activity::waiting, StepId(3), at(10));
  writer.beat(at(14));
  const RankMark mark = it.board.read(at(15), Look::marks)[0];
  CHECK(mark.silent_seconds == doctest::Approx(1));
  CHECK(mark.activity_seconds == doctest::Approx(5));
}

TEST_CASE("a writer without a board writes nowhere") {
  MarkWriter writer;
  writer.sign(this_process());
  writer.begin_round(RoundId(1), at(1));
  writer.enter(Activity::data, StepId(1), at(1));
  writer.beat(at(2));
  CHECK(writer.activity() == Activity::data);
}

TEST_CASE("another view of the memory sees the same marks, other memory is refused") {
  const Board it(3);
  it.board.writer(2).enter(Activity::forward, StepId(4), at(1));
  const auto other = MarkBoard::attach(it.memory.bytes(), 3);
  REQUIRE(other.ok());
  CHECK(other->read(at(1), Look::marks)[2].step == StepId(4));
  CHECK(MarkBoard::attach(it.memory.bytes(), 2).status().code() == StatusCode::data_loss);
  const SharedSegment blank = heap_segment(MarkBoard::bytes_needed(3));
  CHECK(MarkBoard::attach(blank.bytes(), 3).status().code() == StatusCode::data_loss);
  CHECK(MarkBoard::attach(blank.bytes().first(64), 3).status().code() == StatusCode::data_loss);
  CHECK(MarkBoard::format(blank.bytes().first(64), 3).status().code() ==
        StatusCode::invalid_argument);
}

TEST_CASE("no mark is ever seen half moved") {
  const Board it(1);
  std::atomic<bool> is_over{false};
  std::thread rank([&] {
    MarkWriter writer = it.board.writer(0);
    for (std::uint64_t i = 1; i <= 200'000; ++i) {
      // Step, round and time stay consistent.
      writer.begin_round(RoundId(i), at(static_cast<double>(i)));
      writer.enter(i % 2 == 0 ? Activity::data : Activity::forward, StepId(i),
                   at(static_cast<double>(i)));
    }
    is_over = true;
  });
  std::uint64_t last = 0;
  while (!is_over) {
    const RankMark mark = it.board.read(at(1e6), Look::marks)[0];
    if (mark.activity == Activity::unknown || mark.activity == Activity::outside) continue;
    const std::uint64_t step = mark.step.value();
    const bool is_even = mark.activity == Activity::data;
    CHECK(is_even == (step % 2 == 0));
    CHECK((mark.round.value() == step || mark.round.value() == step + 1));
    CHECK(1e6 - mark.activity_seconds == doctest::Approx(static_cast<double>(step)).epsilon(1e-9));
    CHECK(step >= last);
    last = step;
  }
  rank.join();
}

TEST_CASE("what other nodes told is kept for some seconds") {
  const Board it(1);
  CHECK(it.board.told(at(1)).empty());
  RankMark culprit;
  culprit.rank = RankId(6);
  culprit.activity = Activity::finished;
  culprit.round = RoundId(3);
  culprit.activity_seconds = 2;
  it.board.tell(std::vector(12, culprit), at(10));
  const auto told = it.board.told(at(11));
  REQUIRE(told.size() == MarkBoard::kMostTold);
  CHECK(told[0].rank == RankId(6));
  CHECK(told[0].activity_seconds == doctest::Approx(3));
  CHECK(it.board.told(at(20)).empty());
  it.board.tell({}, at(21));
  CHECK(it.board.told(at(21)).empty());
}

TEST_CASE("the letter of a process stands behind its name, which may hold anything") {
  struct Line {
    std::string line;
    ProcessState state;
  };
  const std::vector<Line> lines = {
      {"12 (train) R 1 12", ProcessState::running},
      {"12 (train) S 1 12", ProcessState::running},
      {"12 (a) T (b) T 1 12", ProcessState::stopped},
      {"12 () D) t 1", ProcessState::stopped},
      {"12 (train) Z 1 12", ProcessState::gone},
      {"12 (train) X 1 12", ProcessState::gone},
      {"", ProcessState::unknown},
      {"12 (train", ProcessState::unknown},
      {"12 (train)", ProcessState::unknown},
  };
  for (const Line& each : lines) {
    CAPTURE(each.line);
    CHECK(parse_process_state(each.line) == each.state);
  }
}

TEST_CASE("a process runs, stands still, and is gone") {
  const ProcessId self = this_process();
  CHECK(state_of(self) == ProcessState::running);
  CHECK(state_of({0, self.space}) == ProcessState::unknown);
  CHECK(state_of({self.number, self.space + 1}) == ProcessState::unknown);  // another container
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const ProcessId id{child, self.space};
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  CHECK(state_of(id) == ProcessState::stopped);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  CHECK(state_of(id) == ProcessState::gone);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
