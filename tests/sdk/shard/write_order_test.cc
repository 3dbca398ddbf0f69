#include "sdk/src/shard/write_order.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "coordinator/transport/shared/segment.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

void yield_until(const std::function<bool()>& is_over) {
  while (!is_over()) std::this_thread::yield();
}

// Runs `work(rank, order)` on a thread for each rank.
template <class Work>
void on_ranks(std::int32_t ranks, const Work& work) {
  const auto memory = transport::heap_segment(WriteOrder::bytes_needed(ranks));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      WriteOrder order(memory, rank, ranks, yield_until);
      work(rank, order);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_SUITE("order of writes") {
  TEST_CASE(
      "a rank writes only when no other reads the values before, and reads only whole writes") {
    constexpr std::int32_t kRanks = 3;
    constexpr int kWrites = 2000;
    std::vector<std::atomic<int>> values(kRanks);
    std::atomic<int> wrong{0};
    on_ranks(kRanks, [&](std::int32_t rank, WriteOrder& order) {
      for (int write = 1; write <= kWrites; ++write) {
        if (order.arrive(7)) ++wrong;
        values[static_cast<std::size_t>(rank)].store(write, std::memory_order_relaxed);
        order.complete();
        if ((write + rank) % 3 != 0) continue;
        order.wait_for_completed();
        for (const std::atomic<int>& each : values) {
          if (each.load(std::memory_order_relaxed) != write) ++wrong;
        }
      }
      order.wait_for_completed();
    });
    CHECK(wrong == 0);
  }

  TEST_CASE("ranks that write something else find each other") {
    std::vector<std::optional<std::int32_t>> found(3);
    on_ranks(3, [&](std::int32_t rank, WriteOrder& order) {
      found[static_cast<std::size_t>(rank)] = order.arrive(rank == 1 ? 2 : 1);
      order.complete();
    });
    CHECK(found[0] == 1);
    CHECK(found[1] == 0);
    CHECK(found[2] == 1);
  }

  TEST_CASE("a rank that reads alone waits for nobody") {
    on_ranks(2, [&](std::int32_t rank, WriteOrder& order) {
      order.arrive(1);
      order.complete();
      if (rank == 1) return;
      order.wait_for_completed();
      CHECK(order.is_up_to_date());
      order.wait_for_completed();
      CHECK(order.number() == 1);
    });
  }
}

TEST_SUITE("sequences of updates") {
  TEST_CASE("every write of the first update waits, later the last one does") {
    UpdateSequences sequences;
    for (const std::uint64_t what : {1, 2, 3}) CHECK(sequences.note(what));
    for (int update = 0; update < 3; ++update) {
      sequences.begin();
      CHECK_FALSE(sequences.note(1));
      CHECK_FALSE(sequences.note(2));
      CHECK(sequences.note(3));
    }
    CHECK(sequences.new_sequences() == 1);
  }

  TEST_CASE("an update that departs from all known ones waits at every further write") {
    UpdateSequences sequences;
    for (const std::uint64_t what : {1, 2, 3}) sequences.note(what);
    sequences.begin();
    CHECK_FALSE(sequences.note(1));
    CHECK(sequences.note(9));
    CHECK(sequences.note(3));
    CHECK(sequences.new_sequences() == 2);
  }

  TEST_CASE("passes without an update between them change nothing") {
    UpdateSequences sequences;
    for (const std::uint64_t what : {1, 2}) sequences.note(what);
    for (int pass = 0; pass < 3; ++pass) sequences.begin();
    CHECK_FALSE(sequences.note(1));
    CHECK(sequences.note(2));
  }
}
