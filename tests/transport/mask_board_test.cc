#include "coordinator/transport/shared/mask_board.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/transport/shared/segment.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using Frame = std::vector<std::byte>;

Status publish(MaskBoard& board, const std::vector<Frame>& frames) {
  std::vector<std::span<const std::byte>> views(frames.begin(), frames.end());
  return board.publish(views);
}

// Returns the set of a number: 1 to 4 frames with sizes and bytes unique to it.
std::vector<Frame> set_of(std::uint64_t number) {
  std::vector<Frame> frames(1 + number % 4);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    frames[i].assign(1 + (number * 7 + i) % 40, static_cast<std::byte>(number + i));
  }
  return frames;
}

std::vector<Frame> copy(const MaskReader& reader) {
  std::vector<Frame> frames;
  for (const auto& frame : reader.frames()) frames.emplace_back(frame.begin(), frame.end());
  return frames;
}

TEST_SUITE_BEGIN("mask board");

TEST_CASE("a reader gets each new set whole, and nothing while there is none") {
  const SharedSegment memory = heap_segment(MaskBoard::bytes_needed(1024));
  MaskBoard board = *MaskBoard::format(memory.bytes(), 1024);
  MaskReader reader(*MaskBoard::attach(memory.bytes()));
  CHECK_FALSE(reader.poll());
  for (const std::uint64_t number : {0u, 3u, 8u, 5u}) {
    CHECK(publish(board, set_of(number)).ok());
    CHECK(reader.poll());
    CHECK(copy(reader) == set_of(number));
    CHECK_FALSE(reader.poll());
  }
  CHECK(reader.sets() == 4);
}

TEST_CASE("empty sets and empty frames are sets too") {
  const SharedSegment memory = heap_segment(MaskBoard::bytes_needed(64));
  MaskBoard board = *MaskBoard::format(memory.bytes(), 64);
  MaskReader reader(board);
  CHECK(publish(board, {Frame{}, Frame(3), Frame{}}).ok());
  CHECK(reader.poll());
  CHECK(copy(reader) == std::vector<Frame>{Frame{}, Frame(3), Frame{}});
  CHECK(publish(board, {}).ok());
  CHECK(reader.poll());
  CHECK(reader.frames().empty());
}

TEST_CASE("a set that does not fit is refused and the board stays as it is") {
  const SharedSegment memory = heap_segment(MaskBoard::bytes_needed(64));
  MaskBoard board = *MaskBoard::format(memory.bytes(), 64);
  MaskReader reader(board);
  CHECK(publish(board, {Frame(60)}).ok());
  CHECK(publish(board, {Frame(61)}).code() == StatusCode::invalid_argument);
  CHECK(publish(board, {Frame(30), Frame(30)}).code() == StatusCode::invalid_argument);
  CHECK(reader.poll());
  CHECK(reader.frames()[0].size() == 60);
}

TEST_CASE("memory that holds no board is refused") {
  const SharedSegment memory = heap_segment(MaskBoard::bytes_needed(128));
  CHECK(MaskBoard::attach(memory.bytes()).status().code() == StatusCode::data_loss);
  CHECK(MaskBoard::format(memory.bytes(), 129).status().code() == StatusCode::invalid_argument);
  CHECK(MaskBoard::format(memory.bytes(), 128).ok());
  CHECK(MaskBoard::attach(memory.bytes()).ok());
  CHECK(MaskBoard::attach(memory.bytes().first(128)).status().code() == StatusCode::data_loss);
}

TEST_CASE("no reader ever sees a torn set, and every reader sees the last one") {
  constexpr std::uint64_t kSets = 100'000;
  const SharedSegment memory = heap_segment(MaskBoard::bytes_needed(1024));
  MaskBoard board = *MaskBoard::format(memory.bytes(), 1024);
  std::atomic<std::uint64_t> torn{0}, last_seen{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      MaskReader reader(*MaskBoard::attach(memory.bytes()));
      while (reader.sets() < kSets) {
        if (!reader.poll()) std::this_thread::yield();
        // A failed poll leaves the earlier set unchanged.
        if (reader.sets() > 0 && copy(reader) != set_of(reader.sets())) ++torn;
      }
      ++last_seen;
    });
  }
  for (std::uint64_t i = 1; i <= kSets; ++i) {
    static_cast<void>(publish(board, set_of(i)));
    if (i % 4 == 0) std::this_thread::yield();
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == 0);
  CHECK(last_seen == 3);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
